//! A queue pair for datagrams. A datagram is a single packet, and can be lost. A queue pair can
//! send datagrams to any host.

use std::time::{Duration, Instant};

use rdmsg::{
    cm::CmId,
    verbs::{
        AccessFlags, AddressHandle, AhAttr, CompletionChannel, CompletionQueue, MemoryRegion,
        ProtectionDomain, QpCap, QpInitAttr, QueuePair, RecvWr, SendWr, Sge, WorkCompletion,
    },
};

use crate::Result;

/// The time limit for the next datagram, and for the completion of the sends. After this time, the
/// program considers missing datagrams lost, because hosts do not resend datagrams.
const TIME_LIMIT: Duration = Duration::from_secs(10);

const SEND: u64 = 0;
const RECEIVE: u64 = 1;

/// A queue pair that sends and receives datagrams of one size. The program ignores the content of
/// the datagrams, so all sends and receives use the same memory.
#[derive(Debug)]
pub struct Datagrams {
    /// The connection manager id.
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

/// The destination of the datagrams.
#[derive(Debug)]
struct To {
    handle: AddressHandle,
    qp_num: u32,
    qkey: u32,
}

impl Datagrams {
    /// Creates a queue pair for `count` datagrams of `size` bytes in each direction, and posts all
    /// receives.
    ///
    /// # Errors
    ///
    /// Fails if `size` exceeds the MTU of the port, or if an object cannot be created.
    pub fn new(mut id: CmId, count: u32, size: u32) -> Result<Self> {
        let device = id.verbs().ok_or("the device was removed")?;
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
        // The first 40 bytes of a received datagram are its global routing header.
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

    /// Returns the number of the queue pair. Other hosts address their datagrams to this number.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }

    /// Sets the destination of the datagrams: the path, the queue pair number, and the queue key.
    ///
    /// # Errors
    ///
    /// Fails if `ibv_create_ah` fails.
    pub fn set_peer(&mut self, ah_attr: &AhAttr, qp_num: u32, qkey: u32) -> Result<()> {
        let handle = AddressHandle::new(&self.pd, ah_attr)?;
        self.to = Some(To {
            handle,
            qp_num,
            qkey,
        });
        Ok(())
    }

    /// Sends all datagrams without waiting for their completions. The immediate data of each
    /// datagram is the number of this queue pair, so that the peer can reply.
    ///
    /// # Errors
    ///
    /// Fails if the destination is not known, or if `ibv_post_send` fails.
    pub fn send(&self) -> Result<()> {
        let to = self.to.as_ref().ok_or("the destination is not known")?;
        for number in 1..=self.count {
            let bytes = Sge::new(&self.memory, AddressHandle::GRH_LEN..);
            let datagram = SendWr::send_with_imm(SEND, bytes, self.qp_num());
            let datagram = datagram.to(&to.handle, to.qp_num, to.qkey);
            // Signal only the last send. Its completion shows that all sends have completed.
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
    /// Fails if a send failed, or if no completion arrives within `TIME_LIMIT`.
    pub fn wait_sent(&mut self) -> Result<()> {
        while self.count > 0 {
            let completion = self.completion(TIME_LIMIT)?;
            let completion = completion.ok_or("the device did not send the datagrams in time")?;
            if completion.result()?.wr_id == SEND {
                break;
            }
            self.receive(&completion)?;
        }
        Ok(())
    }

    /// Waits until all datagrams have arrived. The time limit is `first` for the first datagram,
    /// and `TIME_LIMIT` for each further datagram.
    ///
    /// # Errors
    ///
    /// Fails if a datagram does not arrive in time. The error contains the number of datagrams that
    /// have arrived.
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
                    "{received} of {count} datagrams arrived: the others were lost, or -C differs"
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
            return Err(format!("received a datagram of {len} bytes, not {}", self.size).into());
        }
        self.received += 1;
        if self.to.is_none() {
            // Reply on the reverse path of the datagram, to the queue pair whose number is the
            // immediate data.
            let mut grh = [0; AddressHandle::GRH_LEN];
            self.memory.copy_out(0, &mut grh);
            let port = self.id.port_num();
            self.to = Some(To {
                handle: AddressHandle::from_wc(&self.pd, completion, &grh, port)?,
                qp_num: success.imm_data.unwrap_or(success.src_qp),
                qkey: self
                    .qp
                    .query()?
                    .qkey
                    .ok_or("the queue pair has no queue key")?,
            });
        }
        Ok(())
    }

    /// Waits for the next completion. Returns `None` if no completion arrives within `time_limit`.
    fn completion(&self, time_limit: Duration) -> Result<Option<WorkCompletion>> {
        let start = Instant::now();
        loop {
            // Poll between `req_notify` and the wait, because completions before `req_notify` cause
            // no event.
            self.cq.req_notify(false)?;
            let mut completions = [WorkCompletion::default()];
            if self.cq.poll(&mut completions)? == 1 {
                let result = completions[0].result();
                result.map_err(|error| format!("{error}: -S must be the same on both sides"))?;
                return Ok(Some(completions[0]));
            }
            let left = time_limit.saturating_sub(start.elapsed());
            if left.is_zero()
                || self.done.wait_event(left)?.is_none() && time_limit != Duration::MAX
            {
                return Ok(None);
            }
        }
    }
}
