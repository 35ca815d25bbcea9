# Finds the PyTorch wheel through the Python that has it (DISTCA_PYTHON) and defines torch_wheel, an interface target:
# headers, libtorch, run path. Installed, too: the package file includes it.
# The wheel's own TorchConfig.cmake is not used: with a CUDA wheel it demands a CUDA toolkit and nvcc,
# while our sources reach CUDA by dispatch alone.
if(SKBUILD)  # pip builds for the Python that runs it
  set(DISTCA_PYTHON ${Python_EXECUTABLE})
else()
  find_program(DISTCA_PYTHON NAMES python3 HINTS ${CMAKE_SOURCE_DIR}/.venv/bin NO_DEFAULT_PATH)
  find_program(DISTCA_PYTHON NAMES python3 REQUIRED)
endif()
# Without loading it, which takes seconds, and libraries that an unpacked wheel with CUDA does not have.
execute_process(
  COMMAND ${DISTCA_PYTHON} -c
    "import importlib.util as u,os,runpy;d=os.path.dirname(u.find_spec('torch').origin);v=runpy.run_path(d+'/version.py');print(d,v['__version__'],v['cuda'] or 'none',sep=';')"
  OUTPUT_VARIABLE torch_facts ERROR_VARIABLE torch_error RESULT_VARIABLE torch_rc
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT torch_rc EQUAL 0 AND SKBUILD)
  message(FATAL_ERROR "distca is built against the PyTorch that is installed, and ${DISTCA_PYTHON} has none: install it "
                      "first, then run pip install --no-build-isolation")
elseif(NOT torch_rc EQUAL 0)
  message(FATAL_ERROR "no PyTorch in ${DISTCA_PYTHON}: run scripts/setup.sh, name the Python that has it by "
                      "-DDISTCA_PYTHON=..., or build with -DDISTCA_WITH_TORCH=OFF for plan and data only.\n${torch_error}")
endif()
list(GET torch_facts 0 DISTCA_TORCH_DIR)
list(GET torch_facts 1 DISTCA_TORCH_VERSION)
list(GET torch_facts 2 DISTCA_TORCH_CUDA)
message(STATUS "PyTorch ${DISTCA_TORCH_VERSION} (CUDA ${DISTCA_TORCH_CUDA}) in ${DISTCA_TORCH_DIR}")

add_library(torch_wheel INTERFACE IMPORTED)
# Behind the system's folders: the wheel carries headers of its own fmt, whose symbols are not those we link.
target_compile_options(torch_wheel INTERFACE
  "SHELL:-idirafter ${DISTCA_TORCH_DIR}/include"
  "SHELL:-idirafter ${DISTCA_TORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(torch_wheel INTERFACE DISTCA_WITH_TORCH
  _GLIBCXX_USE_CXX11_ABI=1 USE_DISTRIBUTED USE_C10D_GLOO)
target_link_directories(torch_wheel INTERFACE ${DISTCA_TORCH_DIR}/lib)
set(of_package $<BOOL:$<TARGET_PROPERTY:BUILD_WITH_INSTALL_RPATH>>)  # of Python's, see python/CMakeLists.txt
set(torch_libs torch torch_cpu c10)
if(NOT DISTCA_TORCH_CUDA STREQUAL "none")
  # Python has loaded them before the package, and one library serves PyTorch with CUDA and without.
  list(APPEND torch_libs $<$<NOT:${of_package}>:torch_cuda> $<$<NOT:${of_package}>:c10_cuda>)
endif()
# --no-as-needed: the CUDA kernels register themselves when the library loads; nobody names a symbol of theirs.
target_link_libraries(torch_wheel INTERFACE -Wl,--no-as-needed ${torch_libs} -Wl,--as-needed)
# The package's libraries look beside its own folder.
target_link_options(torch_wheel INTERFACE
  $<$<NOT:${of_package}>:-Wl,-rpath,${DISTCA_TORCH_DIR}/lib>)
