//! Sets options of ids, including those of enhanced connection establishment.
#![allow(unsafe_code)]

use std::ptr;

use libc::c_int;
use rdma_status::OsError;

use super::CmId;
use crate::sys::{consts, ffi};

/// Options of enhanced connection establishment (ECE).
///
/// With these options, devices of the same vendor negotiate features that the InfiniBand standard
/// does not define.
///
/// See [`rdma_set_local_ece(3)`](https://man7.org/linux/man-pages/man3/rdma_set_local_ece.3.html).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "programs fill in every field, as in C"
)]
#[doc(alias = "ibv_ece")]
pub struct Ece {
    /// The vendor that defines the options.
    pub vendor_id: u32,
    /// The options in the vendor's format.
    pub options: u32,
}

impl CmId {
    /// Sets the type of service of the id's packets: `RDMA_OPTION_ID_TOS`.
    ///
    /// The value consists of DSCP and ECN, as in the IP header. The program must set this option
    /// before resolving the route.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`rdma_set_option(3)`](https://man7.org/linux/man-pages/man3/rdma_set_option.3.html).
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    #[doc(alias = "rdma_set_option")]
    pub fn set_tos(&mut self, tos: u8) -> Result<(), OsError> {
        self.set_option(consts::RDMA_OPTION_ID_TOS, tos)
    }

    /// Sets whether the address may be reused: `RDMA_OPTION_ID_REUSEADDR`.
    ///
    /// With this option, the id can be bound to an address even if connections of an earlier
    /// listener on this address still exist. The program must set this option before binding.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`set_tos`](Self::set_tos).
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    pub fn set_reuseaddr(&mut self, reuse: bool) -> Result<(), OsError> {
        self.set_option(consts::RDMA_OPTION_ID_REUSEADDR, c_int::from(reuse))
    }

    /// Sets whether an id that is bound to an IPv6 address excludes IPv4: `RDMA_OPTION_ID_AFONLY`.
    ///
    /// The program must set this option before binding.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`set_tos`](Self::set_tos).
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    pub fn set_afonly(&mut self, only: bool) -> Result<(), OsError> {
        self.set_option(consts::RDMA_OPTION_ID_AFONLY, c_int::from(only))
    }

    /// Sets the acknowledgement timeout of the queue pair: `RDMA_OPTION_ID_ACK_TIMEOUT`.
    ///
    /// For an `exponent` n from 1 to 31, the timeout is 4.096 µs × 2ⁿ. The exponent 0 means that
    /// there is no timeout. The program must set this option before connecting or accepting.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if the exponent is above 31, because the device would truncate it to five
    /// bits. Otherwise returns the errors of [`set_tos`](Self::set_tos).
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    pub fn set_ack_timeout(&mut self, exponent: u8) -> Result<(), OsError> {
        if exponent > 31 {
            return Err(OsError::new("rdma_set_option", libc::EINVAL));
        }
        self.set_option(consts::RDMA_OPTION_ID_ACK_TIMEOUT, exponent)
    }

    fn set_option<T>(&mut self, name: c_int, mut value: T) -> Result<(), OsError> {
        self.inner.call("rdma_set_option", |id| {
            let value = ptr::from_mut(&mut value).cast();
            // SAFETY: `id` exists, and the lock of its channel is held. `value` points to a local
            // variable of the given size.
            unsafe { ffi::rdma_set_option(id, consts::RDMA_OPTION_ID, name, value, size_of::<T>()) }
        })
    }

    /// Sets the ECE options that the id offers to the peer. This function is only for ids whose
    /// queue pair the program creates itself, not through the id.
    ///
    /// The program must set the options before connecting or accepting.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if the id has a queue pair, because librdmacm then sets the options itself.
    /// Also returns `EINVAL` if the vendor id is 0, which means that there are no options.
    #[doc(alias = "rdma_set_local_ece")]
    pub fn set_local_ece(&mut self, ece: Ece) -> Result<(), OsError> {
        let mut raw = ffi::ibv_ece {
            vendor_id: ece.vendor_id,
            options: ece.options,
            comp_mask: 0,
        };
        self.inner.call("rdma_set_local_ece", |id| {
            // SAFETY: `id` exists, the lock of its channel is held, and `raw` is a local variable.
            unsafe { ffi::rdma_set_local_ece(id, &raw mut raw) }
        })
    }

    /// Returns the ECE options that the peer offered. This function is only for ids whose queue
    /// pair the program creates itself, not through the id.
    ///
    /// The options are available after CONNECT_REQUEST or CONNECT_RESPONSE. If the peer offered no
    /// options, all fields are 0.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if the id has a queue pair, because librdmacm then handles the options
    /// itself: see [`rdma_get_remote_ece(3)`][man].
    ///
    /// [man]: https://man7.org/linux/man-pages/man3/rdma_get_remote_ece.3.html
    #[doc(alias = "rdma_get_remote_ece")]
    pub fn get_remote_ece(&mut self) -> Result<Ece, OsError> {
        let mut raw = ffi::ibv_ece {
            vendor_id: 0,
            options: 0,
            comp_mask: 0,
        };
        self.inner.call("rdma_get_remote_ece", |id| {
            // SAFETY: `id` exists, the lock of its channel is held, and `raw` is a local variable.
            unsafe { ffi::rdma_get_remote_ece(id, &raw mut raw) }
        })?;
        Ok(Ece {
            vendor_id: raw.vendor_id,
            options: raw.options,
        })
    }
}
