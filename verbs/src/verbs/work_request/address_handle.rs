#![allow(unsafe_code)]

use std::{fmt, mem::MaybeUninit, ptr, ptr::NonNull, sync::Arc};

use rdma_status::OsError;

use crate::{
    sys::{Process, cvt_errno, cvt_ptr, ffi, log_destroy_error},
    verbs::{completion::WorkCompletion, device::Gid, memory::ProtectionDomain},
};

/// The path to a port: the destination address of packets, and the route to that address.
///
/// See [`ibv_create_ah(3)`](https://man7.org/linux/man-pages/man3/ibv_create_ah.3.html).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[doc(alias = "ibv_ah_attr")]
pub struct AhAttr {
    /// The global route, which RoCE requires.
    pub grh: Option<GlobalRoute>,
    /// The local identifier (LID) of the destination, 0 on RoCE.
    pub dlid: u16,
    /// The service level.
    pub sl: u8,
    /// The low bits of the local identifier (LID) of the source port, 0 on RoCE.
    pub src_path_bits: u8,
    /// The maximum rate, as a code of `enum ibv_rate`. 0 means the rate of the port.
    pub static_rate: u8,
    /// The number of the local port, from 1.
    pub port_num: u8,
}

/// The part of a path that routers use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[doc(alias = "ibv_global_route")]
pub struct GlobalRoute {
    /// The global identifier (GID) of the destination.
    pub dgid: Gid,
    /// The flow label, 20 bits. On RoCE version 2, the driver derives the UDP source port from the
    /// flow label.
    pub flow_label: u32,
    /// The index of the source GID in the local port's GID table.
    pub sgid_index: u8,
    /// The maximum number of routers on the path of a packet.
    pub hop_limit: u8,
    /// The traffic class. On RoCE version 2, it is the type of service in the IP header.
    pub traffic_class: u8,
}

impl AhAttr {
    pub(in crate::verbs) fn to_raw(self) -> ffi::ibv_ah_attr {
        let grh = self.grh.unwrap_or_default();
        ffi::ibv_ah_attr {
            grh: ffi::ibv_global_route {
                dgid: ffi::ibv_gid {
                    raw: grh.dgid.octets(),
                },
                flow_label: grh.flow_label,
                sgid_index: grh.sgid_index,
                hop_limit: grh.hop_limit,
                traffic_class: grh.traffic_class,
            },
            dlid: self.dlid,
            sl: self.sl,
            src_path_bits: self.src_path_bits,
            static_rate: self.static_rate,
            is_global: self.grh.is_some().into(),
            port_num: self.port_num,
        }
    }

    pub(crate) fn from_raw(raw: ffi::ibv_ah_attr) -> Self {
        let grh = GlobalRoute {
            // SAFETY: the member `raw` covers the whole union, and the structure is initialised.
            dgid: Gid::new(unsafe { raw.grh.dgid.raw }),
            flow_label: raw.grh.flow_label,
            sgid_index: raw.grh.sgid_index,
            hop_limit: raw.grh.hop_limit,
            traffic_class: raw.grh.traffic_class,
        };
        Self {
            grh: (raw.is_global != 0).then_some(grh),
            dlid: raw.dlid,
            sl: raw.sl,
            src_path_bits: raw.src_path_bits,
            static_rate: raw.static_rate,
            port_num: raw.port_num,
        }
    }
}

/// A handle that represents the path to a port. Requests that send datagrams use the handle as the
/// destination. Clones refer to the same object.
///
/// A queue pair keeps the handles of all posted requests alive until the queue pair is destroyed.
/// Therefore create one handle per peer instead of one per datagram.
///
/// See [`ibv_create_ah(3)`](https://man7.org/linux/man-pages/man3/ibv_create_ah.3.html).
#[derive(Clone)]
#[doc(alias = "ibv_ah")]
pub struct AddressHandle {
    inner: Arc<Inner>,
}

struct Inner {
    raw: NonNull<ffi::ibv_ah>,
    /// The process that created the handle. Only this process destroys it.
    process: Process,
    pd: ProtectionDomain,
}

// SAFETY: libibverbs allows any thread to use and to destroy an address handle.
unsafe impl Send for Inner {}
// SAFETY: an address handle does not change after its creation.
unsafe impl Sync for Inner {}

impl AddressHandle {
    /// The number of bytes that precede a received datagram in its buffer. They are reserved for a
    /// global routing header.
    pub const GRH_LEN: usize = 40;

    /// Creates an address handle.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_create_ah(3)`](https://man7.org/linux/man-pages/man3/ibv_create_ah.3.html).
    #[doc(alias = "ibv_create_ah")]
    pub fn new(pd: &ProtectionDomain, attr: &AhAttr) -> Result<Self, OsError> {
        let mut attr = attr.to_raw();
        // SAFETY: `pd` keeps the domain alive, and `attr` is a local variable.
        let raw = cvt_ptr("ibv_create_ah", || unsafe {
            ffi::ibv_create_ah(pd.as_ptr(), &raw mut attr)
        })?;
        Ok(Self::from_raw(raw, pd))
    }

    /// Creates a handle for the sender of a datagram that arrived on the port `port`.
    ///
    /// `grh` contains the first 40 bytes of the datagram's buffer.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if the receive failed. Otherwise returns the errors of
    /// [`ibv_create_ah_from_wc(3)`][man].
    ///
    /// [man]: https://man7.org/linux/man-pages/man3/ibv_create_ah_from_wc.3.html
    #[doc(alias = "ibv_create_ah_from_wc")]
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn from_wc(
        pd: &ProtectionDomain,
        wc: &WorkCompletion,
        grh: &[u8; Self::GRH_LEN],
        port: u8,
    ) -> Result<Self, OsError> {
        const CALL: &str = "ibv_create_ah_from_wc";
        const { assert!(size_of::<ffi::ibv_grh>() == Self::GRH_LEN) };

        if !wc.is_success() {
            return Err(OsError::new(CALL, libc::EINVAL));
        }
        let mut wc = *wc;
        // The header is copied because the C function requires an aligned header.
        let mut header = MaybeUninit::<ffi::ibv_grh>::zeroed();
        // SAFETY: `grh` and `header` are different objects of the same length.
        unsafe { ptr::copy_nonoverlapping(grh.as_ptr(), header.as_mut_ptr().cast(), grh.len()) };
        let raw_wc = (&raw mut wc).cast();
        // SAFETY: `pd` keeps the domain alive, and `wc` and `header` are local variables. A
        // `WorkCompletion` has the layout of an `ibv_wc`.
        let raw = cvt_ptr(CALL, || unsafe {
            ffi::ibv_create_ah_from_wc(pd.as_ptr(), raw_wc, header.as_mut_ptr(), port)
        })?;
        Ok(Self::from_raw(raw, pd))
    }

    fn from_raw(raw: NonNull<ffi::ibv_ah>, pd: &ProtectionDomain) -> Self {
        Self {
            inner: Arc::new(Inner {
                raw,
                process: Process::this(),
                pd: pd.clone(),
            }),
        }
    }

    /// Returns the handle's protection domain.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// Returns the C object, which exists until the last clone of this handle is dropped.
    pub(in crate::verbs) fn as_ptr(&self) -> *mut ffi::ibv_ah {
        self.inner.raw.as_ptr()
    }

    /// Returns a number that identifies this handle and its clones. No other existing handle of the
    /// process has this number.
    pub(in crate::verbs) fn id(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle").finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // This process is a forked child, and the handle belongs to the parent.
            return;
        }
        // SAFETY: `from_raw` took ownership of the handle, and only this `drop` destroys it. All
        // queue pairs whose requests used the handle have been destroyed, because each of these
        // queue pairs owned a clone of the handle.
        log_destroy_error(cvt_errno("ibv_destroy_ah", || unsafe {
            ffi::ibv_destroy_ah(self.raw.as_ptr())
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_round_trip() {
        let local = AhAttr {
            dlid: 3,
            sl: 1,
            src_path_bits: 2,
            static_rate: 4,
            port_num: 1,
            grh: None,
        };
        let route = GlobalRoute {
            dgid: Gid::new([7; 16]),
            flow_label: 0xf_ffff,
            sgid_index: 5,
            hop_limit: 64,
            traffic_class: 0xb8,
        };
        for attr in [
            local,
            AhAttr {
                grh: Some(route),
                ..local
            },
        ] {
            assert_eq!(AhAttr::from_raw(attr.to_raw()), attr);
        }
    }
}
