#![allow(unsafe_code)]

use std::{
    ffi::CString,
    fmt,
    mem::MaybeUninit,
    net::SocketAddr,
    ptr::{self, NonNull},
};

use rdma_status::OsError;

use super::PortSpace;
use crate::{
    sys::{cvt, cvt_ptr, ffi, sockaddr},
    verbs::QpType,
};

/// Hints for [`AddrInfo::new`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddrInfoHints {
    /// Whether the address is for a listener: `RAI_PASSIVE`. Default: `false`.
    pub passive: bool,
    /// Whether the node is an address rather than a name: `RAI_NUMERICHOST`. Default: `false`.
    pub numeric_host: bool,
    /// The port space. Default: TCP.
    pub port_space: Option<PortSpace>,
    /// The local address to connect from. Default: determined by the route to the peer.
    pub src: Option<SocketAddr>,
}

/// The addresses of a node and a service, resolved by librdmacm.
///
/// See [`rdma_getaddrinfo(3)`](https://man7.org/linux/man-pages/man3/rdma_getaddrinfo.3.html).
#[doc(alias = "rdma_addrinfo")]
pub struct AddrInfo {
    list: NonNull<ffi::rdma_addrinfo>,
}

// SAFETY: the list is only read until it is freed, and any thread may read and free it.
unsafe impl Send for AddrInfo {}
// SAFETY: as above.
unsafe impl Sync for AddrInfo {}

impl AddrInfo {
    /// Resolves a node (a name or an address) and a service (a port number).
    ///
    /// # Errors
    ///
    /// `EINVAL` for a zero byte in either, and for an unknown service; `EADDRNOTAVAIL` for an
    /// unknown node, `EAGAIN` if the failure is temporary; otherwise those of
    /// [`rdma_getaddrinfo(3)`](https://man7.org/linux/man-pages/man3/rdma_getaddrinfo.3.html).
    #[doc(alias = "rdma_getaddrinfo")]
    pub fn new(node: Option<&str>, service: &str, hints: AddrInfoHints) -> Result<Self, OsError> {
        const CALL: &str = "rdma_getaddrinfo";
        ffi::open_libraries()?;
        let c_string =
            |text: &str| CString::new(text).map_err(|_| OsError::new(CALL, libc::EINVAL));
        let node = node.map(c_string).transpose()?;
        let service = c_string(service)?;
        let mut raw = MaybeUninit::<ffi::rdma_addrinfo>::zeroed();
        // SAFETY: the C structure holds integers and pointers: all zero is a valid value.
        let raw = unsafe { raw.assume_init_mut() };
        // The flags are small constants.
        let flag = |wanted, flag: u32| if wanted { flag.cast_signed() } else { 0 };
        raw.ai_flags =
            flag(hints.passive, ffi::RAI_PASSIVE) | flag(hints.numeric_host, ffi::RAI_NUMERICHOST);
        raw.ai_port_space = hints.port_space.map_or(0, PortSpace::raw).cast_signed();
        raw.ai_qp_type = QpType::RC.raw().cast_signed();
        if hints.port_space == Some(PortSpace::UDP) {
            raw.ai_qp_type = QpType::UD.raw().cast_signed();
        }
        let mut list = ptr::null_mut();
        let node = node.as_ref().map_or(ptr::null(), |node| node.as_ptr());
        let mut src = hints.src.map(sockaddr::from_std);
        if let Some(src) = &mut src {
            raw.ai_src_len = size_of_val(src) as libc::socklen_t;
            raw.ai_src_addr = ptr::from_mut(src).cast();
        }
        // SAFETY: the strings are terminated by zero; the hints, their targets and the out pointer
        // are locals.
        let ret = unsafe { ffi::rdma_getaddrinfo(node, service.as_ptr(), raw, &raw mut list) };
        if let Some(errno) = resolver_errno(ret) {
            return Err(OsError::new(CALL, errno));
        }
        cvt(CALL, ret)?;
        Ok(Self {
            list: cvt_ptr(CALL, list)?,
        })
    }

    /// Returns the local address, to bind to.
    #[must_use]
    pub fn src_addr(&self) -> Option<SocketAddr> {
        let info = self.first();
        // SAFETY: librdmacm sets pointer and length together; null is none.
        unsafe { sockaddr::from_ptr(info.ai_src_addr.cast(), info.ai_src_len as usize) }
    }

    /// Returns the peer's address, to connect to.
    #[must_use]
    pub fn dst_addr(&self) -> Option<SocketAddr> {
        let info = self.first();
        // SAFETY: librdmacm sets pointer and length together; null is none.
        unsafe { sockaddr::from_ptr(info.ai_dst_addr.cast(), info.ai_dst_len as usize) }
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::rdma_addrinfo {
        self.list.as_ptr()
    }

    fn first(&self) -> &ffi::rdma_addrinfo {
        // SAFETY: a list has a first element, and exists until it is freed.
        unsafe { self.list.as_ref() }
    }
}

/// Converts an error code of the system's resolver, which librdmacm passes through, to `errno`.
///
/// `EAI_BADFLAGS` has the value with which librdmacm reports that `errno` is set. It cannot occur,
/// as the flags are always valid.
fn resolver_errno(ret: libc::c_int) -> Option<libc::c_int> {
    match ret {
        0 | -1 => None,
        libc::EAI_AGAIN => Some(libc::EAGAIN),
        libc::EAI_FAMILY => Some(libc::EAFNOSUPPORT),
        libc::EAI_MEMORY => Some(libc::ENOMEM),
        libc::EAI_SERVICE => Some(libc::EINVAL),
        _ => Some(libc::EADDRNOTAVAIL),
    }
}

impl fmt::Debug for AddrInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddrInfo")
            .field("src", &self.src_addr())
            .field("dst", &self.dst_addr())
            .finish()
    }
}

impl Drop for AddrInfo {
    fn drop(&mut self) {
        // SAFETY: `rdma_getaddrinfo` allocated it, and it is freed once.
        unsafe { ffi::rdma_freeaddrinfo(self.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resolvers_numbers_become_error_numbers() {
        assert_eq!(resolver_errno(0), None);
        assert_eq!(resolver_errno(-1), None);
        assert_eq!(resolver_errno(libc::EAI_NONAME), Some(libc::EADDRNOTAVAIL));
        assert_eq!(resolver_errno(libc::EAI_AGAIN), Some(libc::EAGAIN));
    }

    #[test]
    fn a_zero_byte_is_refused() {
        let error = AddrInfo::new(Some("a\0b"), "1", AddrInfoHints::default()).unwrap_err();
        assert_eq!(error, OsError::new("rdma_getaddrinfo", libc::EINVAL));
    }
}
