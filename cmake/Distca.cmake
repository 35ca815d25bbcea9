# Functions every room's CMakeLists.txt uses: a library, its unit tests, a program.

# distca_library(NAME SOURCES a.cc... DEPS distca_base... [TORCH])
# TORCH links libtorch and reuses the precompiled ATen header.
function(distca_library name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC distca_options ${ARG_DEPS})
  if(ARG_TORCH)
    target_link_libraries(${name} PUBLIC torch_wheel)
    target_precompile_headers(${name} REUSE_FROM distca_torch_pch)
  endif()
endfunction()

# distca_test(NAME SOURCES a_test.cc... DEPS ... [TORCH] [TIMEOUT seconds] [LABELS ...] [SERIAL])
# One executable, one ctest entry for each GoogleTest case. Cases of an instantiation called "full" get the label full:
# `make test` leaves them out. SERIAL: runs with no other test beside it, for timeouts of a few seconds.
function(distca_test name)
  if(NOT DISTCA_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "TORCH;SERIAL" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest_main GTest::gmock)
  if(ARG_TORCH)
    target_link_libraries(${name} PRIVATE torch_wheel)
    target_precompile_headers(${name} REUSE_FROM distca_torch_pch)
  endif()
  set(properties TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL ${ARG_SERIAL})
  if(ARG_LABELS)  # an empty value would vanish from the list and take RUN_SERIAL as the label
    list(APPEND properties LABELS ${ARG_LABELS})
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES TEST_FILTER "-full/*"
    PROPERTIES ${properties}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES TEST_FILTER "full/*"
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS full
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
endfunction()
