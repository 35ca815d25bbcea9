# cmake --install: libraries that distca::api needs, the public headers with those that they include, and a package file
# for find_package(distca).
include(CMakePackageConfigHelpers)
set(DISTCA_PUBLIC_HEADERS
  distca/api/core_attention.h distca/api/planner.h
  distca/base/error.h distca/comm/c10d_group.h distca/comm/communicator.h distca/comm/thread_group.h distca/plan/plan.h)

# Appends a header, and what it includes of ours, to a list.
function(distca_add_header list header)
  set(headers ${${list}})
  if(NOT header IN_LIST headers)
    list(APPEND headers ${header})
    file(STRINGS ${CMAKE_SOURCE_DIR}/${header} lines REGEX "^#include \"distca/")
    foreach(line ${lines})
      string(REGEX REPLACE ".*\"(.*)\".*" "\\1" included ${line})
      distca_add_header(headers ${included})
    endforeach()
  endif()
  set(${list} ${headers} PARENT_SCOPE)
endfunction()

foreach(header ${DISTCA_PUBLIC_HEADERS})
  distca_add_header(installed_headers ${header})
endforeach()
foreach(header ${installed_headers})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION include/${folder})
endforeach()

install(TARGETS distca_options distca_base distca_documents distca_cost distca_plan distca_trace distca_operations distca_kernels
  distca_ranks distca_comm distca_task_lists distca_runtime distca_api_planner distca_api EXPORT distca ARCHIVE DESTINATION lib)
install(EXPORT distca NAMESPACE distca:: FILE distcaTargets.cmake DESTINATION lib/cmake/distca)
configure_package_config_file(cmake/distcaConfig.cmake.in ${CMAKE_BINARY_DIR}/distcaConfig.cmake
  INSTALL_DESTINATION lib/cmake/distca)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/distcaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/distcaConfig.cmake ${CMAKE_BINARY_DIR}/distcaConfigVersion.cmake cmake/TorchWheel.cmake
  DESTINATION lib/cmake/distca)
