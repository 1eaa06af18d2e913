//! Posts several receives with one call. The functions are unsafe: their callers must guarantee
//! that the memory is valid.
#![allow(unsafe_code)]

use std::ptr;

use rdma_status::OsError;

use super::{QueuePair, SharedReceiveQueue};
use crate::{
    sys::{cvt_post, ffi},
    verbs::work_request::{RawSge, raw},
};

/// A receive that specifies its memory by address. It does not keep memory regions alive.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::exhaustive_structs, reason = "programs fill in every field")]
pub struct RawRecv {
    /// The id that the completion of the receive carries.
    pub wr_id: u64,
    /// The memory that the device fills.
    pub sge: RawSge,
}

impl RawRecv {
    /// The maximum number of receives that `post_recvs_raw` posts with one call of `ibv_post_recv`
    /// or `ibv_post_srq_recv`.
    pub const MOST: usize = 8;

    /// Converts `receives` to chains of at most [`MOST`](Self::MOST) C structures, and calls `post`
    /// with each chain in order. Returns at the first call that fails.
    fn with_chains(
        receives: &[Self],
        mut post: impl FnMut(*mut ffi::ibv_recv_wr) -> Result<(), OsError>,
    ) -> Result<(), OsError> {
        for receives in receives.chunks(Self::MOST) {
            let mut chain = [raw::recv_wr(0, None); Self::MOST];
            let mut next = ptr::null_mut();
            for (wr, receive) in chain.iter_mut().zip(receives).rev() {
                *wr = raw::recv_wr(receive.wr_id, Some(&receive.sge));
                wr.next = next;
                next = wr;
            }
            post(next)?;
        }
        Ok(())
    }
}

impl QueuePair {
    /// Posts receives in order. Each `ibv_post_recv` call posts up to [`RawRecv::MOST`] receives,
    /// and the driver rings the doorbell only once per call. Does not check the requests, and does
    /// not keep their memory alive.
    ///
    /// If a call fails, some of the receives may already have been posted, beginning with the
    /// first.
    ///
    /// # Safety
    ///
    /// The call and each receive fulfil the requirements of [`post_recv_raw`](Self::post_recv_raw),
    /// and the receive queue has a free entry for each receive.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_post_recv(3)`](https://man7.org/linux/man-pages/man3/ibv_post_recv.3.html).
    pub unsafe fn post_recvs_raw(&self, receives: &[RawRecv]) -> Result<(), OsError> {
        let mut bad_wr = ptr::null_mut();
        RawRecv::with_chains(receives, |chain| {
            // SAFETY: the queue pair exists, and `chain` and its elements exist during the call.
            // The caller guarantees that the queue has free entries and that the memory stays
            // valid.
            let ret = unsafe { ffi::ibv_post_recv(self.as_ptr(), chain, &raw mut bad_wr) };
            cvt_post("ibv_post_recv", ret)
        })
    }
}

impl SharedReceiveQueue {
    /// Posts receives in order. Each `ibv_post_srq_recv` call posts up to [`RawRecv::MOST`]
    /// receives. Does not check the requests, and does not keep their memory alive.
    ///
    /// If a call fails, some of the receives may already have been posted, beginning with the
    /// first.
    ///
    /// # Safety
    ///
    /// Each receive fulfils the requirements of [`post_recv_raw`](Self::post_recv_raw), and the
    /// queue has a free entry for each receive.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`ibv_post_srq_recv(3)`](https://man7.org/linux/man-pages/man3/ibv_post_srq_recv.3.html).
    pub unsafe fn post_recvs_raw(&self, receives: &[RawRecv]) -> Result<(), OsError> {
        let mut bad_wr = ptr::null_mut();
        RawRecv::with_chains(receives, |chain| {
            // SAFETY: the queue exists, and `chain` and its elements exist during the call. The
            // caller guarantees that the queue has free entries and that the memory stays valid.
            let ret = unsafe { ffi::ibv_post_srq_recv(self.as_ptr(), chain, &raw mut bad_wr) };
            cvt_post("ibv_post_srq_recv", ret)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Posts `count` receives and returns the ids in each chain, in the order in which a driver
    /// reads them. The call that posts chain number `fails`, counted from 1, returns an error. If
    /// `fails` is 0, no call fails.
    fn chains(count: u64, fails: usize) -> (Vec<Vec<u64>>, Result<(), OsError>) {
        let mut bytes = [0; 4];
        let start = bytes.as_mut_ptr();
        let receives: Vec<_> = (0..count)
            .map(|wr_id| RawRecv {
                wr_id,
                sge: RawSge::new(start, 4, wr_id as u32),
            })
            .collect();
        let mut chains = Vec::new();
        let result = RawRecv::with_chains(&receives, |mut wr| {
            let mut ids = Vec::new();
            while !wr.is_null() {
                // SAFETY: `wr` points into the chain, whose last request has a null `next` pointer.
                let current = unsafe { &*wr };
                // SAFETY: each request has one element, which exists during the call.
                let sge = unsafe { &*current.sg_list };
                assert_eq!((current.num_sge, sge.length), (1, 4));
                assert_eq!(u64::from(sge.lkey), current.wr_id);
                ids.push(current.wr_id);
                wr = current.next;
            }
            chains.push(ids);
            match chains.len() == fails {
                true => Err(OsError::new("ibv_post_recv", libc::ENOMEM)),
                false => Ok(()),
            }
        });
        (chains, result)
    }

    #[test]
    fn receives_are_chained_by_eight_in_order() {
        for (count, lengths) in [
            (0, &[][..]),
            (1, &[1]),
            (8, &[8]),
            (9, &[8, 1]),
            (37, &[8, 8, 8, 8, 5]),
        ] {
            let (chains, result) = chains(count, 0);
            assert_eq!(result, Ok(()));
            let counts: Vec<usize> = chains.iter().map(Vec::len).collect();
            assert_eq!(counts, lengths);
            let all: Vec<u64> = chains.concat();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn failed_chain_is_the_last_one() {
        let (chains, result) = chains(20, 2);
        assert_eq!(chains.len(), 2);
        assert_eq!(result, Err(OsError::new("ibv_post_recv", libc::ENOMEM)));
    }
}
