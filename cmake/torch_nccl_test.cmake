# Test of distca_nccl_headers over folders made in WORK.
include(${CMAKE_CURRENT_LIST_DIR}/TorchNccl.cmake)
file(REMOVE_RECURSE ${WORK})

function(nccl_h folder patch)
  file(WRITE ${WORK}/${folder}/nccl.h
    "#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH ${patch}\n#define NCCL_SUFFIX \"\"\n#define NCCL_VERSION_CODE 2280${patch}\n")
endfunction()

# expect(FOLDERS INCLUDES REASON): REASON is a regular expression, empty where NCCL is found.
function(expect folders expected_includes reason)
  list(TRANSFORM folders PREPEND ${WORK}/)
  list(TRANSFORM expected_includes PREPEND ${WORK}/)
  distca_nccl_headers(includes missing "${folders}" 2.28.9 13.0)
  if(NOT "${includes}" STREQUAL "${expected_includes}")
    message(SEND_ERROR "${folders}: includes '${includes}', expected '${expected_includes}'")
  endif()
  if(reason STREQUAL "" AND NOT missing STREQUAL "" OR NOT "${missing}" MATCHES "${reason}")
    message(SEND_ERROR "${folders}: missing '${missing}', expected '${reason}'")
  endif()
endfunction()

nccl_h(nccl 9)
nccl_h(other_nccl 7)
foreach(header cuda_runtime.h cusparse.h cublas_v2.h cusolverDn.h)
  file(WRITE ${WORK}/wheels/${header} "")
  file(WRITE ${WORK}/toolkit/${header} "")
endforeach()
file(WRITE ${WORK}/toolkit/crt/host_config.h "")
file(WRITE ${WORK}/toolkit/cccl/nv/target "")
file(WRITE ${WORK}/crt/crt/host_config.h "")
file(WRITE ${WORK}/crt/nv/target "")

expect("wheels;toolkit" "" "^no nccl.h beside PyTorch: pip install nvidia-nccl-cu13==2.28.9")
expect("other_nccl;toolkit" "" "other_nccl/nccl.h is of NCCL 2.28.7, PyTorch was built with 2.28.9$")
# What a PyTorch wheel brings by itself: CUDA 13's compiler headers are no dependency of it.
expect("nccl;wheels" "" "^no crt/host_config.h of CUDA 13.0: ")
expect("nccl" "" "^no cuda_runtime.h of CUDA 13.0: ")
expect("nccl;wheels;toolkit" "nccl;wheels;toolkit;toolkit/cccl" "")
expect("nccl;wheels;crt" "nccl;wheels;crt" "")
expect("nccl;toolkit" "nccl;toolkit;toolkit/cccl" "")
# The first that there is counts, whatever comes behind it.
expect("nccl;other_nccl;toolkit" "nccl;toolkit;toolkit/cccl" "")
