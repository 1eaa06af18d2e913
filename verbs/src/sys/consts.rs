//! Constants of `rdma/rdma_cma.h` and `infiniband/verbs.h` that the generated bindings lack. In the
//! headers, most of them are macros or members of unnamed enums.

use libc::c_int;

/// `RDMA_OPTION_ID` of `rdma/rdma_cma.h`: the level of the options that belong to an id.
pub(crate) const RDMA_OPTION_ID: c_int = 0;
/// `RDMA_OPTION_ID_TOS` of `rdma/rdma_cma.h`: type of service, `u8`.
pub(crate) const RDMA_OPTION_ID_TOS: c_int = 0;
/// `RDMA_OPTION_ID_REUSEADDR` of `rdma/rdma_cma.h`: an `int`, 0 or 1.
pub(crate) const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
/// `RDMA_OPTION_ID_AFONLY` of `rdma/rdma_cma.h`: an `int`, 0 or 1.
pub(crate) const RDMA_OPTION_ID_AFONLY: c_int = 2;
/// `RDMA_OPTION_ID_ACK_TIMEOUT` of `rdma/rdma_cma.h`: `u8`, 4.096 µs × 2^value.
pub(crate) const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;

/// `RDMA_MAX_RESP_RES` of `rdma/rdma_cma.h`: requests the device's maximum of responder resources.
pub(crate) const RDMA_MAX_RESP_RES: u8 = 0xff;
/// `RDMA_MAX_INIT_DEPTH` of `rdma/rdma_cma.h`: requests the device's maximum initiator depth.
pub(crate) const RDMA_MAX_INIT_DEPTH: u8 = 0xff;

/// `RDMA_CM_JOIN_MC_ATTR_ADDRESS` of `rdma/rdma_cma.h`: the field `addr` is set.
pub(crate) const RDMA_CM_JOIN_MC_ATTR_ADDRESS: u32 = 1 << 0;
/// `RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS` of `rdma/rdma_cma.h`: the field `join_flags` is set.
pub(crate) const RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS: u32 = 1 << 1;

/// `IBV_ADVISE_MR_FLAG_FLUSH` of `infiniband/verbs.h`: `ibv_advise_mr` returns after the operation
/// has completed.
pub(crate) const IBV_ADVISE_MR_FLAG_FLUSH: u32 = 1 << 0;

/// `IBV_WC_STANDARD_FLAGS` of `infiniband/verbs.h`: the fields that each completion contains by
/// default.
pub(crate) const IBV_WC_STANDARD_FLAGS: u64 = 0x7f;

/// `IBV_ACCESS_OPTIONAL_RANGE` of `infiniband/verbs.h`: the access flags that a kernel ignores if
/// it does not support them.
pub(crate) const IBV_ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;
