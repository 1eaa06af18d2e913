#![allow(unsafe_code)]

use std::{
    ffi::CString,
    fmt,
    mem::MaybeUninit,
    net::SocketAddr,
    ptr::{self, NonNull},
};

use super::PortSpace;
use crate::{
    status::OsError,
    sys::{cvt, cvt_ptr, ffi, sockaddr},
    verbs::QpType,
};

/// What [`AddrInfo::new`] is to look for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddrInfoHints {
    /// For a listener: `RAI_PASSIVE`. Default `false`.
    pub passive: bool,
    /// The node is an address, not a name to look up: `RAI_NUMERICHOST`. Default `false`.
    pub numeric_host: bool,
    /// The port space. Default: TCP.
    pub port_space: Option<PortSpace>,
    /// The local address to connect from. Default: what the route to the peer says.
    pub src: Option<SocketAddr>,
}

/// Addresses for a name and a service, as librdmacm resolves them.
///
/// See [`rdma_getaddrinfo(3)`](https://man7.org/linux/man-pages/man3/rdma_getaddrinfo.3.html).
#[doc(alias = "rdma_addrinfo")]
pub struct AddrInfo {
    list: NonNull<ffi::rdma_addrinfo>,
}

// SAFETY: the list is only read until it is freed, and may be read and freed by any thread.
unsafe impl Send for AddrInfo {}
// SAFETY: as above.
unsafe impl Sync for AddrInfo {}

impl AddrInfo {
    /// Looks up a node, a name or an address, and a service, a port number.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a zero byte in either, and for a service that is not known; `EADDRNOTAVAIL` for a node that is not, `EAGAIN` when that
    /// may change; others of [`rdma_getaddrinfo(3)`](https://man7.org/linux/man-pages/man3/rdma_getaddrinfo.3.html).
    #[doc(alias = "rdma_getaddrinfo")]
    pub fn new(node: Option<&str>, service: &str, hints: AddrInfoHints) -> Result<Self, OsError> {
        const CALL: &str = "rdma_getaddrinfo";
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
        // SAFETY: the strings end with zero; the hints, what they point to and the out pointer are locals.
        let ret = unsafe { ffi::rdma_getaddrinfo(node, service.as_ptr(), raw, &raw mut list) };
        if let Some(errno) = resolver_errno(ret) {
            return Err(OsError::new(CALL, errno));
        }
        cvt(CALL, ret)?;
        Ok(Self {
            list: cvt_ptr(CALL, list)?,
        })
    }

    /// The local address: to bind to.
    #[must_use]
    pub fn src_addr(&self) -> Option<SocketAddr> {
        let info = self.first();
        // SAFETY: librdmacm gives pointer and length together; null stands for none.
        unsafe { sockaddr::from_ptr(info.ai_src_addr.cast(), info.ai_src_len as usize) }
    }

    /// The peer's address: to connect to.
    #[must_use]
    pub fn dst_addr(&self) -> Option<SocketAddr> {
        let info = self.first();
        // SAFETY: librdmacm gives pointer and length together; null stands for none.
        unsafe { sockaddr::from_ptr(info.ai_dst_addr.cast(), info.ai_dst_len as usize) }
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::rdma_addrinfo {
        self.list.as_ptr()
    }

    fn first(&self) -> &ffi::rdma_addrinfo {
        // SAFETY: a list has a first element, and lives until it is freed.
        unsafe { self.list.as_ref() }
    }
}

/// The error number for an answer that is the system resolver's: librdmacm hands its numbers through, which are not those of `errno`.
///
/// `EAI_BADFLAGS` has the number with which librdmacm says that `errno` is set, and cannot come: the flags are always good.
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
        // SAFETY: `rdma_getaddrinfo` gave it, and it is freed once.
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
