use std::ptr;

use crate::{
    sys::ffi,
    verbs::work_request::{Chain, HeldRegions, PostError, RecvWr, Sge},
};

/// A receive queue, possibly a shared one, to which safe code posts requests.
///
/// This type keeps the memory of posted requests alive until the queue is destroyed.
#[derive(Default)]
pub(super) struct RecvQueue {
    chain: Chain<ffi::ibv_recv_wr>,
    regions: HeldRegions,
}

impl RecvQueue {
    /// Posts requests with `post`, which calls the C function named `call`. Returns `EINVAL` for a
    /// request that has more than `max_sge` elements or an element in a dma-buf.
    pub(super) fn post(
        &mut self,
        call: &'static str,
        requests: &[RecvWr<'_>],
        max_sge: u32,
        post: impl FnOnce(*mut ffi::ibv_recv_wr, *mut *mut ffi::ibv_recv_wr) -> libc::c_int,
    ) -> Result<(), PostError> {
        let Self { chain, regions } = self;
        let translate = |request: &RecvWr<'_>, list: &mut Vec<ffi::ibv_sge>| {
            let sges = request.sg_list.as_slice();
            let num_sge = num_sge(sges.len(), max_sge)?;
            check_targets(sges)?;
            regions.hold(sges);
            list.extend(sges.iter().map(|sge| sge.to_raw()));
            Ok(ffi::ibv_recv_wr {
                wr_id: request.wr_id,
                next: ptr::null_mut(),
                sg_list: ptr::null_mut(),
                num_sge,
            })
        };
        chain.post(call, requests, translate, post)
    }
}

/// Converts a number of elements to the C type. Returns `EINVAL` if the number exceeds `max`,
/// because not every driver checks this limit.
pub(super) fn num_sge(len: usize, max: u32) -> Result<libc::c_int, libc::c_int> {
    match i32::try_from(len) {
        Ok(num_sge) if num_sge.unsigned_abs() <= max => Ok(num_sge),
        _ => Err(libc::EINVAL),
    }
}

/// Returns `EINVAL` if an element belongs to a dma-buf. Callers must check each request that lets
/// the device write to the elements. The reason is that some drivers let the processor copy short
/// data to the address of an element. In a dma-buf, this address is not an address of the process.
pub(super) fn check_targets(sges: &[Sge<'_>]) -> Result<(), libc::c_int> {
    if sges.iter().any(|sge| sge.region().is_dmabuf()) {
        return Err(libc::EINVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rdma_status::OsError;

    use super::*;
    use crate::verbs::MemoryRegion;

    #[test]
    fn receive_into_dmabuf_is_refused() {
        let region = MemoryRegion::of_no_device();
        let requests = [RecvWr::new(7, Sge::new(&region, ..))];
        let must_not_run = |_, _| panic!("must not be called");
        let mut queue = RecvQueue::default();
        let error = queue
            .post("ibv_post_srq_recv", &requests, 1, must_not_run)
            .unwrap_err();
        let expected = OsError::new("ibv_post_srq_recv", libc::EINVAL);
        assert_eq!((error.posted, error.error), (0, expected));
    }

    #[test]
    fn more_elements_than_the_queue_takes_are_refused() {
        assert_eq!(num_sge(0, 0), Ok(0));
        assert_eq!(num_sge(4, 4), Ok(4));
        assert_eq!(num_sge(5, 4), Err(libc::EINVAL));
        assert_eq!(num_sge(1 << 31, u32::MAX), Err(libc::EINVAL));
    }

    #[test]
    fn requests_without_elements_are_posted() {
        let requests = [RecvWr::new(7, &[]), RecvWr::new(8, &[])];
        let result = RecvQueue::default().post("ibv_post_recv", &requests, 1, |first, _| {
            assert!(!first.is_null());
            0
        });
        assert_eq!(result, Ok(()));
    }
}
