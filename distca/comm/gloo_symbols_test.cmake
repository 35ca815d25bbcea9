# cmake -DNM=nm -DLIBRARY=libdistca_gloo.a -P gloo_symbols_test.cmake
# The system's Gloo headers are older than the Gloo inside the wheel. As long as we neither emit nor
# call anything of Gloo itself (constructors, vtables, inline functions), no object of ours depends
# on the layout of its classes. Templates of std:: over Gloo's pointers do not either.
execute_process(COMMAND ${NM} -C ${LIBRARY} OUTPUT_VARIABLE symbols RESULT_VARIABLE rc)
if(NOT rc EQUAL 0 OR NOT symbols MATCHES " U c10d::ProcessGroupGloo::ProcessGroupGloo")
  message(FATAL_ERROR "nm ${LIBRARY} does not show the group that gloo_group.cc makes")
endif()
string(REGEX MATCHALL
  "[^\n]* [A-Za-z] (vtable for |VTT for |typeinfo for |typeinfo name for |guard variable for |non-virtual thunk to )?(gloo::|c10d::ProcessGroupGloo::GlooStore)[^\n]*"
  ours "${symbols}")
if(ours)
  list(JOIN ours "\n" ours)
  message(FATAL_ERROR "${LIBRARY} uses Gloo's own types:\n${ours}")
endif()
