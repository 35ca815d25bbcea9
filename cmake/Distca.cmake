# Functions every room's CMakeLists.txt uses: a library, its unit tests, a program.

# What nearly every source includes, compiled once.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/pch.cc CONTENT "// carries the precompiled headers of sources without PyTorch\n")
add_library(distca_pch OBJECT ${CMAKE_BINARY_DIR}/pch.cc)
target_link_libraries(distca_pch PUBLIC distca_options)
target_precompile_headers(distca_pch PRIVATE <fmt/format.h> <algorithm> <map> <memory> <optional> <span> <string> <vector>)

if(DISTCA_WITH_TORCH)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/torch_pch.cc CONTENT "// carries the precompiled ATen header\n")
  add_library(distca_torch_pch OBJECT ${CMAKE_BINARY_DIR}/torch_pch.cc)
  target_link_libraries(distca_torch_pch PUBLIC torch_wheel distca_options)
  set(DISTCA_TORCH_PCH <ATen/ATen.h> <vector> <string> <memory> <map> <functional>)
  target_precompile_headers(distca_torch_pch PRIVATE ${DISTCA_TORCH_PCH})
endif()

# distca_library(NAME SOURCES a.cc... DEPS distca_base... [TORCH])
# TORCH links libtorch and reuses the precompiled ATen header.
function(distca_library name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC distca_options ${ARG_DEPS})
  if(ARG_TORCH)
    target_link_libraries(${name} PUBLIC torch_wheel)
    target_precompile_headers(${name} REUSE_FROM distca_torch_pch)
  else()
    target_precompile_headers(${name} REUSE_FROM distca_pch)
  endif()
endfunction()

# Objects of tests are compiled for little of a compiler's time: what is tested lies in libraries, as optimised as ever.
# The PCHs carry GoogleTest, which every test includes; distca_test_main is main() of every test program.
if(DISTCA_BUILD_TESTS)
  add_library(distca_test_options INTERFACE)
  target_link_libraries(distca_test_options INTERFACE distca_options GTest::gmock)
  target_compile_options(distca_test_options INTERFACE $<IF:$<CONFIG:Debug>,-O0,-O1>)

  add_library(distca_test_main OBJECT ${CMAKE_SOURCE_DIR}/distca/base/test_main.cc)
  target_link_libraries(distca_test_main PUBLIC distca_test_options)
  target_precompile_headers(distca_test_main PRIVATE <fmt/format.h> <gmock/gmock.h> <gtest/gtest.h> <string> <vector>)
  if(DISTCA_WITH_TORCH)
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/torch_test_pch.cc CONTENT "// carries the precompiled headers of ATen and GoogleTest\n")
    add_library(distca_torch_test_pch OBJECT ${CMAKE_BINARY_DIR}/torch_test_pch.cc)
    target_link_libraries(distca_torch_test_pch PUBLIC torch_wheel distca_test_options)
    target_precompile_headers(distca_torch_test_pch PRIVATE ${DISTCA_TORCH_PCH} <gmock/gmock.h> <gtest/gtest.h>)
  endif()
endif()

# distca_test(NAME SOURCES a_test.cc... DEPS ... [TORCH] [ALONE] [TIMEOUT seconds] [LABELS ...] [SHARDS count])
# One executable and one ctest entry: a process that loads PyTorch takes longer to start than most cases to run, and
# what cases share is made once. Cases of an instantiation called "full" are an entry of their own, NAME.full, labelled
# full: `make test` leaves them out. TIMEOUT is a case's: test_main.cc names and ends one that takes longer. It is there
# for what hangs, and not for what is slow on a machine that has other work. ALONE: each source is compiled alone, for
# their helpers have the same names. SHARDS: as many entries as said, NAME.1 and so on, each with its part of the cases,
# to run beside one another; they start first, for they take longest.
function(distca_test name)
  if(NOT DISTCA_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "TORCH;ALONE" "TIMEOUT;SHARDS" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 1800)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} distca_test_options distca_test_main)
  if(ARG_TORCH)
    target_link_libraries(${name} PRIVATE torch_wheel)
    target_precompile_headers(${name} REUSE_FROM distca_torch_test_pch)
  else()
    target_precompile_headers(${name} REUSE_FROM distca_test_main)
  endif()
  if(ARG_ALONE)
    set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  endif()
  set(labels "${ARG_LABELS}")
  distca_test_entries(${name} "" "-full/*")
  foreach(source ${ARG_SOURCES})
    file(READ ${source} text)
    if(text MATCHES "INSTANTIATE_TEST_SUITE_P\\([ \n]*full,")
      set(labels full)
      distca_test_entries(${name} .full "full/*")
      break()
    endif()
  endforeach()
endfunction()

# The ctest entries of distca_test's program (`name`, `labels` and ARG_* are its variables) for the cases of a filter.
function(distca_test_entries name suffix filter)
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  set(limit 7200)
  if(labels STREQUAL "full")
    set(limit 36000)
  endif()
  foreach(shard RANGE 1 ${ARG_SHARDS})
    set(entry ${name}${suffix})
    if(ARG_SHARDS GREATER 1)
      string(APPEND entry .${shard})
    endif()
    math(EXPR index "${shard} - 1")
    add_test(NAME ${entry} COMMAND ${name} --gtest_brief=1 --gtest_filter=${filter} --case-timeout-s=${ARG_TIMEOUT}
      WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    # TIMEOUT: for a program that hangs outside its cases; the full grid takes hours.
    set_tests_properties(${entry} PROPERTIES LABELS "${labels}" COST ${ARG_SHARDS}
      TIMEOUT ${limit} ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()
