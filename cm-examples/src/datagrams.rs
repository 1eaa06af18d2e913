//! A queue pair for datagrams: messages of one packet, to and from any host, which may be lost.

use std::time::{Duration, Instant};

use rdmsg::{
    cm::CmId,
    verbs::{
        AccessFlags, AddressHandle, AhAttr, CompletionChannel, CompletionQueue, MemoryRegion,
        ProtectionDomain, QpCap, QpInitAttr, QueuePair, RecvWr, SendWr, Sge, WorkCompletion,
    },
};

use crate::Result;

/// The longest pause between datagrams. A lost datagram is not repeated.
const TIME_LIMIT: Duration = Duration::from_secs(10);

const SEND: u64 = 0;
const RECEIVE: u64 = 1;

/// Datagrams of one length. All are received into one slot, because the program ignores their
/// content.
#[derive(Debug)]
pub struct Datagrams {
    /// The id of the connection manager.
    pub id: CmId,
    pd: ProtectionDomain,
    qp: QueuePair,
    cq: CompletionQueue,
    done: CompletionChannel,
    memory: MemoryRegion,
    count: u32,
    size: u32,
    to: Option<To>,
    received: u32,
}

/// The destination of datagrams.
#[derive(Debug)]
struct To {
    handle: AddressHandle,
    qp_num: u32,
    qkey: u32,
}

impl Datagrams {
    /// Creates a queue pair for `count` datagrams of `size` bytes each way, and posts all receives.
    ///
    /// # Errors
    ///
    /// If `size` exceeds the MTU of the port, and errors of the verbs.
    pub fn new(mut id: CmId, count: u32, size: u32) -> Result<Self> {
        let device = id.verbs().ok_or("the device is gone")?;
        let port = device.query_port(id.port_num())?;
        let mtu = port.active_mtu.bytes().unwrap_or(u32::MAX);
        if size > mtu {
            let text = format!("-S {size}: a datagram is one packet, of up to {mtu} bytes here");
            return Err(text.into());
        }
        let pd = ProtectionDomain::new(&device)?;
        let done = CompletionChannel::new(&device)?;
        let cq = CompletionQueue::new(&device, 2 * count.max(1), Some((&done, 0)))?;
        let cap = QpCap {
            max_send_wr: count.max(1),
            max_recv_wr: count.max(1),
            ..QpCap::default()
        };
        let attr = QpInitAttr::ud(&cq, cap);
        let qp = id.create_qp(&pd, &attr)?;
        // A received datagram starts with its global routing header.
        let len = AddressHandle::GRH_LEN + size as usize;
        let memory = MemoryRegion::new(&pd, len, AccessFlags::LOCAL_WRITE)?;
        for _ in 0..count {
            qp.post_recv(&[RecvWr::new(RECEIVE, Sge::new(&memory, ..))])?;
        }
        Ok(Self {
            id,
            pd,
            qp,
            cq,
            done,
            memory,
            count,
            size,
            to: None,
            received: 0,
        })
    }

    /// Returns the queue pair's number, to which others send.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }

    /// Sets the destination: the path, the queue pair, and the key that it requires.
    ///
    /// # Errors
    ///
    /// Errors of `ibv_create_ah`.
    pub fn set_peer(&mut self, way: &AhAttr, qp_num: u32, qkey: u32) -> Result<()> {
        let handle = AddressHandle::new(&self.pd, way)?;
        self.to = Some(To {
            handle,
            qp_num,
            qkey,
        });
        Ok(())
    }

    /// Sends all datagrams, each with this side's queue pair number, to which the peer can answer.
    /// Does not wait for their completions.
    ///
    /// # Errors
    ///
    /// Errors of `ibv_post_send`.
    pub fn send(&self) -> Result<()> {
        let to = self.to.as_ref().ok_or("there is nobody to send to")?;
        for number in 1..=self.count {
            let bytes = Sge::new(&self.memory, AddressHandle::GRH_LEN..);
            let datagram = SendWr::send_with_imm(SEND, bytes, self.qp_num());
            let datagram = datagram.to(&to.handle, to.qp_num, to.qkey);
            // The completion of the last one covers all.
            let datagram = if number == self.count {
                datagram.signaled()
            } else {
                datagram
            };
            self.qp.post_send(&[datagram])?;
        }
        Ok(())
    }

    /// Waits until the device has sent all datagrams.
    ///
    /// # Errors
    ///
    /// If a datagram failed.
    pub fn wait_sent(&mut self) -> Result<()> {
        while self.count > 0 {
            let completion = self.completion(TIME_LIMIT)?;
            let completion = completion.ok_or("the datagrams are not sent")?;
            if completion.result()?.wr_id == SEND {
                break;
            }
            self.receive(&completion)?;
        }
        Ok(())
    }

    /// Waits until all datagrams have arrived: for the first one at most `first`, then up to the
    /// longest pause.
    ///
    /// # Errors
    ///
    /// If some are missing. The error has the number that arrived.
    pub fn wait_received(&mut self, first: Duration) -> Result<()> {
        while self.received < self.count {
            let patience = if self.received == 0 {
                first
            } else {
                TIME_LIMIT
            };
            let Some(completion) = self.completion(patience)? else {
                let (received, count) = (self.received, self.count);
                let text = format!(
                    "{received} of {count} datagrams have come: the others are lost, or -C is another there"
                );
                return Err(text.into());
            };
            if completion.result()?.wr_id == RECEIVE {
                self.receive(&completion)?;
            }
        }
        Ok(())
    }

    fn receive(&mut self, completion: &WorkCompletion) -> Result<()> {
        let success = completion.result()?;
        let header = AddressHandle::GRH_LEN as u32;
        let len = success.byte_len.saturating_sub(header);
        if len != self.size {
            return Err(format!("a datagram of {len} bytes, not {}", self.size).into());
        }
        self.received += 1;
        if self.to.is_none() {
            // The answer takes the path of the datagram, to the queue pair that it names.
            let mut grh = [0; AddressHandle::GRH_LEN];
            self.memory.copy_out(0, &mut grh);
            let port = self.id.port_num();
            self.to = Some(To {
                handle: AddressHandle::from_wc(&self.pd, completion, &grh, port)?,
                qp_num: success.imm_data.unwrap_or(success.src_qp),
                qkey: self.qp.query()?.qkey.ok_or("a queue pair without a key")?,
            });
        }
        Ok(())
    }

    /// Waits for the next completion. Returns `None` if there is none within `patience`.
    fn completion(&self, patience: Duration) -> Result<Option<WorkCompletion>> {
        let start = Instant::now();
        loop {
            // To miss no completion: first request an event, then poll, then sleep.
            self.cq.req_notify(false)?;
            let mut completions = [WorkCompletion::default()];
            if self.cq.poll(&mut completions)? == 1 {
                let result = completions[0].result();
                result.map_err(|error| format!("{error}: -S must be the same on both sides"))?;
                return Ok(Some(completions[0]));
            }
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() || self.done.wait_event(left)?.is_none() && patience != Duration::MAX
            {
                return Ok(None);
            }
        }
    }
}
