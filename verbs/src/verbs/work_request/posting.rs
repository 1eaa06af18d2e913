#![allow(unsafe_code)]

use std::{collections::HashMap, error::Error, fmt, io, ptr};

use rdma_status::OsError;

use super::Sge;
use crate::{
    sys::{cvt_post, ffi},
    verbs::memory::MemoryRegion,
};

/// The error of a call that could not post one of its work requests.
///
/// The requests before the failed one are posted, and complete as usual. The failed request and the
/// requests after it are not posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PostError {
    /// The number of posted requests, which is the index of the failed request.
    pub posted: usize,
    /// The reason, for example `ENOMEM` if the queue is full, or `EINVAL` if the queue does not
    /// support the failed request.
    pub error: OsError,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot post the request at index {}: {}",
            self.posted, self.error
        )
    }
}

impl Error for PostError {}

impl From<PostError> for OsError {
    fn from(error: PostError) -> Self {
        error.error
    }
}

impl From<PostError> for io::Error {
    fn from(error: PostError) -> Self {
        Self::new(Self::from(error.error).kind(), error)
    }
}

/// The memory regions of all requests that were posted to a queue, without duplicates.
///
/// The queue cannot detect that a request has completed, because the program polls the completion
/// queue. Therefore each region stays alive until the queue is destroyed.
#[derive(Debug, Default)]
pub(in crate::verbs) struct HeldRegions {
    regions: HashMap<usize, MemoryRegion>,
    /// The id of the last region that was passed to `hold`, or 0 if there was none yet. The next
    /// request often uses the same region, and then needs no lookup in `regions`.
    last: usize,
}

impl HeldRegions {
    pub(in crate::verbs) fn hold(&mut self, sges: &[Sge<'_>]) {
        for region in sges.iter().map(Sge::region) {
            let id = region.id();
            if id != self.last {
                self.regions.entry(id).or_insert_with(|| region.clone());
                self.last = id;
            }
        }
    }
}

/// A work request as a C structure, which can be linked into a chain.
pub(in crate::verbs) trait RawWr {
    /// Returns the number of the request's scatter/gather elements.
    fn num_sge(&self) -> usize;

    /// Sets the request's pointers to the next request and to its scatter/gather elements.
    fn link(&mut self, next: *mut Self, sg_list: *mut ffi::ibv_sge);
}

impl RawWr for ffi::ibv_send_wr {
    fn num_sge(&self) -> usize {
        self.num_sge.unsigned_abs() as usize
    }

    fn link(&mut self, next: *mut Self, sg_list: *mut ffi::ibv_sge) {
        (self.next, self.sg_list) = (next, sg_list);
    }
}

impl RawWr for ffi::ibv_recv_wr {
    fn num_sge(&self) -> usize {
        self.num_sge.unsigned_abs() as usize
    }

    fn link(&mut self, next: *mut Self, sg_list: *mut ffi::ibv_sge) {
        (self.next, self.sg_list) = (next, sg_list);
    }
}

/// Work requests as C structures. A queue keeps its chain between posts only to reuse the memory of
/// the vectors.
pub(in crate::verbs) struct Chain<W> {
    /// The requests. Their pointers are valid only during a call of `post`.
    wrs: Vec<W>,
    /// The scatter/gather elements of all requests, in order.
    sges: Vec<ffi::ibv_sge>,
}

// SAFETY: each post first clears both vectors, so no code reads the pointers that an earlier post
// left behind.
unsafe impl<W> Send for Chain<W> {}

impl<W> Default for Chain<W> {
    fn default() -> Self {
        Self {
            wrs: Vec::new(),
            sges: Vec::new(),
        }
    }
}

impl<W: RawWr> Chain<W> {
    /// Translates work requests in order, and stops at the first that cannot be translated. Posts
    /// the translated requests.
    ///
    /// `translate` returns the C structure of a request, without its pointers, and appends the
    /// request's elements to the list. `post` calls the C function named `call`. The first argument
    /// of `post` is the first request of the chain. If `post` fails, it writes a pointer to the
    /// first unposted request through its second argument.
    pub(in crate::verbs) fn post<T>(
        &mut self,
        call: &'static str,
        requests: &[T],
        mut translate: impl FnMut(&T, &mut Vec<ffi::ibv_sge>) -> Result<W, libc::c_int>,
        post: impl FnOnce(*mut W, *mut *mut W) -> libc::c_int,
    ) -> Result<(), PostError> {
        self.wrs.clear();
        self.sges.clear();
        let mut refused = None;
        for request in requests {
            let used = self.sges.len();
            match translate(request, &mut self.sges) {
                Ok(wr) => self.wrs.push(wr),
                Err(errno) => {
                    self.sges.truncate(used);
                    refused = Some(OsError::new(call, errno));
                    break;
                }
            }
        }
        let translated = self.wrs.len();
        let result = self.link().map_or(Ok(()), |first| {
            let mut bad = ptr::null_mut();
            cvt_post(call, post(first, &raw mut bad)).map_err(|error| PostError {
                posted: index(first, translated, bad),
                error,
            })
        });
        match (result, refused) {
            (Ok(()), Some(error)) => Err(PostError {
                posted: translated,
                error,
            }),
            (result, _) => result,
        }
    }

    /// Sets all pointers, and returns the first request, or `None` if the chain is empty. The
    /// pointers and the result are valid until one of the two vectors changes.
    fn link(&mut self) -> Option<*mut W> {
        let count = self.wrs.len();
        let sges = self.sges.as_mut_ptr();
        let first = self.wrs.as_mut_ptr();
        let mut used = 0;
        for position in 0..count {
            let next = if position + 1 < count {
                first.wrapping_add(position + 1)
            } else {
                ptr::null_mut()
            };
            // SAFETY: `position` is inside the vector `wrs`, which this method borrows exclusively.
            let wr = unsafe { &mut *first.wrapping_add(position) };
            let num_sge = wr.num_sge();
            wr.link(
                next,
                if num_sge == 0 {
                    ptr::null_mut()
                } else {
                    sges.wrapping_add(used)
                },
            );
            used += num_sge;
        }
        debug_assert_eq!(
            used,
            self.sges.len(),
            "the list must contain the elements of all requests, and no others"
        );
        (count > 0).then_some(first)
    }
}

/// Returns the index of the request to which `bad` points, among the `count` requests from `first`.
///
/// If the driver has not set `bad`, returns 0, as if no request was posted.
fn index<W>(first: *mut W, count: usize, bad: *mut W) -> usize {
    let index = bad.addr().wrapping_sub(first.addr()) / size_of::<W>();
    if index < count { index } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recv(wr_id: u64, num_sge: i32) -> ffi::ibv_recv_wr {
        ffi::ibv_recv_wr {
            wr_id,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge,
        }
    }

    /// Returns the content of a chain as a driver reads it: the id of each request and the
    /// addresses of its elements.
    fn walk(mut wr: *const ffi::ibv_recv_wr) -> Vec<(u64, Vec<u64>)> {
        let mut seen = Vec::new();
        while !wr.is_null() {
            // SAFETY: `wr` points into the vector of the chain under test, whose last request has a
            // null `next` pointer.
            let current = unsafe { &*wr };
            let sges = (0..current.num_sge as usize)
                // SAFETY: `sg_list` points to `num_sge` elements of this request.
                .map(|index| unsafe { (*current.sg_list.wrapping_add(index)).addr })
                .collect();
            seen.push((current.wr_id, sges));
            wr = current.next;
        }
        seen
    }

    /// Posts one request for each number in `requests`. A number is the number of elements of its
    /// request; a negative number means that the request cannot be translated.
    ///
    /// The addresses of the elements are 1, 2, 3 and so on, counted over all requests.
    fn post(
        chain: &mut Chain<ffi::ibv_recv_wr>,
        requests: &[i32],
        driver: impl FnOnce(*mut ffi::ibv_recv_wr, *mut *mut ffi::ibv_recv_wr) -> i32,
    ) -> Result<(), PostError> {
        let (mut wr_id, mut addr) = (0, 0);
        let translate = |&num_sge: &i32, sges: &mut Vec<ffi::ibv_sge>| {
            wr_id += 1;
            for _ in 0..num_sge.unsigned_abs() {
                addr += 1;
                sges.push(ffi::ibv_sge {
                    addr,
                    length: 1,
                    lkey: 1,
                });
            }
            if num_sge < 0 {
                Err(libc::EINVAL)
            } else {
                Ok(recv(wr_id, num_sge))
            }
        };
        chain.post("ibv_post_recv", requests, translate, driver)
    }

    #[test]
    fn the_chain_is_linked_in_order() {
        let mut chain = Chain::default();
        for _ in 0..2 {
            let result = post(&mut chain, &[2, 0, 1], |first, _| {
                assert_eq!(walk(first), [(1, vec![1, 2]), (2, vec![]), (3, vec![3])]);
                0
            });
            assert_eq!(result, Ok(()));
        }
    }

    #[test]
    fn empty_list_makes_no_call() {
        assert_eq!(
            post(&mut Chain::default(), &[], |_, _| panic!("must not post")),
            Ok(())
        );
    }

    #[test]
    fn the_bad_request_is_found() {
        for bad in 0..3 {
            let result = post(&mut Chain::default(), &[0, 1, 0], |first, bad_wr| {
                // SAFETY: `bad_wr` points to a local variable of `Chain::post`.
                unsafe { bad_wr.write(first.wrapping_add(bad)) };
                libc::ENOMEM
            });
            let error = OsError::new("ibv_post_recv", libc::ENOMEM);
            assert_eq!(result, Err(PostError { posted: bad, error }));
        }
    }

    #[test]
    fn driver_without_bad_wr_posted_none() {
        let result = post(&mut Chain::default(), &[0, 0], |_, _| libc::EIO);
        assert_eq!(result.unwrap_err().posted, 0);
    }

    #[test]
    fn requests_before_an_impossible_one_are_posted() {
        let mut chain = Chain::default();
        let result = post(&mut chain, &[1, 0, -1, 1], |first, _| {
            assert_eq!(walk(first), [(1, vec![1]), (2, vec![])]);
            0
        });
        let error = OsError::new("ibv_post_recv", libc::EINVAL);
        assert_eq!(result, Err(PostError { posted: 2, error }));
        assert_eq!(
            result.unwrap_err().to_string(),
            "cannot post the request at index 2: ibv_post_recv: Invalid argument (os error 22)"
        );
        // The failed post does not affect the next one.
        assert_eq!(
            post(&mut chain, &[0], |first, _| walk(first).len() as i32 - 1),
            Ok(())
        );
    }

    #[test]
    fn driver_error_precedes_a_later_refusal() {
        let result = post(&mut Chain::default(), &[0, 0, -1], |first, bad_wr| {
            // SAFETY: `bad_wr` points to a local variable of `Chain::post`.
            unsafe { bad_wr.write(first.wrapping_add(1)) };
            libc::ENOMEM
        });
        assert_eq!(result.unwrap_err().posted, 1);
    }
}
