# Headers that a wheel is built with come with pip, so that no package of the system is needed: fmt's lie in the PyTorch
# wheel, JSON's in the package nlohmann-json. The system is asked for what pip did not bring.
if(DISTCA_WITH_TORCH)
  # A folder with fmt alone: the wheel's other headers stay behind the system's (TorchWheel.cmake).
  if(NOT EXISTS ${CMAKE_BINARY_DIR}/headers/fmt/format.h)
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/headers)
    file(CREATE_LINK ${DISTCA_TORCH_DIR}/include/fmt ${CMAKE_BINARY_DIR}/headers/fmt SYMBOLIC)
  endif()
  add_library(fmt::fmt INTERFACE IMPORTED)
  target_include_directories(fmt::fmt INTERFACE ${CMAKE_BINARY_DIR}/headers)
else()
  find_package(fmt QUIET)
  if(NOT TARGET fmt::fmt)
    message(FATAL_ERROR "without PyTorch, whose wheel has them, distca needs the headers of fmt: apt-get install libfmt-dev")
  endif()
endif()

execute_process(COMMAND ${Python_EXECUTABLE} -c
    "import importlib.util as u;print(u.find_spec('nlohmann_json').submodule_search_locations[0])"
  OUTPUT_VARIABLE json_folder ERROR_QUIET RESULT_VARIABLE json_rc OUTPUT_STRIP_TRAILING_WHITESPACE)
if(json_rc EQUAL 0)
  add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
  target_include_directories(nlohmann_json::nlohmann_json INTERFACE ${json_folder}/include)
else()
  find_package(nlohmann_json QUIET)
  if(NOT TARGET nlohmann_json::nlohmann_json)
    message(FATAL_ERROR "${Python_EXECUTABLE} has no nlohmann-json, whose headers distca needs: pip install nlohmann-json")
  endif()
endif()
