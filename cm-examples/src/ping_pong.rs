//! The game of `rc_pingpong`: two connected queue pairs that answer each other, and the device
//! requirements of each variant.

use std::time::{Duration, Instant};

use rdmsg::verbs::{
    AccessFlags, Advice, CompletionChannel, CompletionQueue, Context, DeviceMemory,
    ExtendedCompletion, MemoryRegion, OdpCaps, OdpTransportCaps, ProtectionDomain, QpCap,
    QpInitAttr, QueuePair, RecvWr, SendWr, Sge, WorkCompletion,
};

use crate::Result;

/// The longest silence. Without the connection manager no event reports that the peer has ended.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// A likely cause when not even the first message arrives.
const ANOTHER: &str = "a reliable connection is expected (ibv_rc_pingpong): the queue pair of ibv_uc_pingpong or ibv_ud_pingpong is of \
                       another kind, and does not answer";
/// The bytes of a message that is not checked.
const FILLING: u8 = 0x7b;
/// The C program looks at the first byte of each page, which must be zero.
const PAGE: usize = 4096;
/// The id of the work request of a completion.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

/// The rules of a game.
#[derive(Clone, Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "made by programs, field by field"
)]
pub struct Rules {
    /// Bytes of a message.
    pub size: u32,
    /// Messages each way.
    pub iters: u32,
    /// The number of posted receives.
    pub rx_depth: u32,
    /// Whether this side starts.
    pub begins: bool,
    /// Whether to sleep until there are completions.
    pub events: bool,
    /// Whether to check every byte of the last message.
    pub check: bool,
    /// Whether to read the arrival times.
    pub timestamps: bool,
    /// Whether to post with the functions of `ibv_wr_post`.
    pub new_send: bool,
    /// Whether the device prefetches pages before they are used.
    pub prefetch: bool,
    /// The memory of messages.
    pub place: Place,
}

/// Memory for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are these")]
pub enum Place {
    /// Pinned by the registration.
    Pinned,
    /// Paged in by the device on demand.
    OnDemand,
    /// On demand, with a region that covers all memory.
    Implicit,
    /// Memory of the device.
    Device,
}

impl Rules {
    /// Checks that the device supports the rules.
    ///
    /// # Errors
    ///
    /// The missing capability.
    pub fn check_device(&self, context: &Context) -> Result<()> {
        let can = context.query_device_ex()?;
        let both = OdpTransportCaps::SEND | OdpTransportCaps::RECV;
        let on_demand =
            can.odp_caps().contains(OdpCaps::SUPPORT) && can.rc_odp_caps().contains(both);
        let lacks = match self.place {
            Place::OnDemand | Place::Implicit if !on_demand => {
                "on-demand paging of what reliable connections send and receive (odp_caps)"
            }
            Place::Implicit if !can.odp_caps().contains(OdpCaps::SUPPORT_IMPLICIT) => {
                "on-demand paging of all memory (IBV_ODP_SUPPORT_IMPLICIT)"
            }
            Place::Device if can.max_dm_size() < self.size.into() => {
                "as much memory of its own (max_dm_size)"
            }
            _ if self.timestamps && can.completion_timestamp_mask() == 0 => {
                "timestamps of completions (completion_timestamp_mask)"
            }
            _ => return Ok(()),
        };
        Err(format!("{} does not have {lacks}", context.device_name()).into())
    }
}

/// A queue pair, and one slot in memory for messages in both directions.
#[derive(Debug)]
pub struct PingPong {
    /// Must be connected before the game.
    pub qp: QueuePair,
    rules: Rules,
    cq: CompletionQueue,
    done: CompletionChannel,
    memory: MemoryRegion,
    device_memory: Option<DeviceMemory>,
    /// The arrival times, in ticks of the device's clock.
    ticks: Vec<u64>,
}

impl PingPong {
    /// Creates a queue pair, in state RESET, and fills the memory.
    ///
    /// # Errors
    ///
    /// Errors of the verbs.
    pub fn new(context: &Context, rules: Rules) -> Result<Self> {
        rules.check_device(context)?;
        let pd = ProtectionDomain::new(context)?;
        let done = CompletionChannel::new(context)?;
        let entries = rules.rx_depth + 1;
        let cq = if rules.timestamps {
            CompletionQueue::new_extended(context, entries, Some((&done, 0)), 0, true)?
        } else {
            CompletionQueue::new(context, entries, Some((&done, 0)))?
        };
        let cap = QpCap {
            max_recv_wr: rules.rx_depth,
            ..QpCap::default()
        };
        let attr = QpInitAttr {
            sq_sig_all: true,
            ..QpInitAttr::rc(&cq, cap)
        };
        let qp = if rules.new_send {
            QueuePair::with_send_ops(&pd, &attr).map_err(|error| {
                let name = context.device_name();
                format!("{name} does not have the functions of ibv_wr_post: {error}")
            })?
        } else {
            QueuePair::new(&pd, &attr)?
        };
        let (size, local) = (rules.size as usize, AccessFlags::LOCAL_WRITE);
        let mut device_memory = None;
        let memory = match rules.place {
            Place::Pinned => MemoryRegion::new(&pd, size, local)?,
            Place::OnDemand => MemoryRegion::new(&pd, size, local | AccessFlags::ON_DEMAND)?,
            Place::Implicit => MemoryRegion::new_implicit(&pd, size, local)?,
            Place::Device => {
                let memory = DeviceMemory::new(context, size)?;
                MemoryRegion::of_device(&pd, device_memory.insert(memory), local)?
            }
        };
        if rules.prefetch {
            memory.advise(Advice::PrefetchWrite)?;
        }
        let game = Self {
            qp,
            rules,
            cq,
            done,
            memory,
            device_memory,
            ticks: Vec::new(),
        };
        let filling = if game.rules.check {
            content(size)
        } else {
            vec![FILLING; size]
        };
        match &game.device_memory {
            Some(memory) => memory.copy_in(0, &filling)?,
            None => game.memory.copy_in(0, &filling),
        }
        Ok(game)
    }

    /// Posts receives until the queue is full. The queue pair must have left the state RESET.
    ///
    /// # Errors
    ///
    /// Errors of `ibv_post_recv`.
    pub fn post_receives(&self, count: u32) -> Result<()> {
        for _ in 0..count {
            self.qp
                .post_recv(&[RecvWr::new(RECEIVE, Sge::new(&self.memory, ..))])?;
        }
        Ok(())
    }

    fn send(&self) -> Result<()> {
        Ok(self
            .qp
            .post_send(&[SendWr::send(SEND, Sge::new(&self.memory, ..))])?)
    }

    /// Plays until all messages were exchanged. Receives must be posted already.
    ///
    /// # Errors
    ///
    /// If a work request failed, or no message arrives in time.
    pub fn play(&mut self) -> Result<()> {
        let Rules {
            iters,
            rx_depth,
            begins,
            ..
        } = self.rules;
        let (mut posted, mut sent, mut received) = (rx_depth, 0, 0);
        // A send has two conditions: a message was received, and the last send has completed.
        let (mut sending, mut answered) = (begins, false);
        if sending {
            self.send()?;
        }
        while sent < iters || received < iters {
            for id in self.completions(received == 0)? {
                if id == SEND {
                    sent += 1;
                    sending = false;
                    continue;
                }
                received += 1;
                answered = true;
                posted -= 1;
                if posted <= 1 {
                    self.post_receives(rx_depth - posted)?;
                    posted = rx_depth;
                }
            }
            if answered && !sending && sent < iters {
                self.send()?;
                (sending, answered) = (true, false);
            }
        }
        Ok(())
    }

    /// Waits for the next completions. `first` means that the peer has sent nothing yet.
    fn completions(&mut self, first: bool) -> Result<Vec<u64>> {
        let hint = if first {
            format!("; {ANOTHER}")
        } else {
            String::new()
        };
        let start = Instant::now();
        loop {
            if self.rules.events {
                // To miss no completion: first request an event, then poll, then sleep.
                self.cq.req_notify(false)?;
            }
            let ids = self.poll().map_err(|error| format!("{error}{hint}"))?;
            if !ids.is_empty() {
                return Ok(ids);
            }
            let late = if self.rules.events {
                self.done.wait_event(TIME_LIMIT)?.is_none()
            } else {
                start.elapsed() > TIME_LIMIT
            };
            if late {
                let same = "-s, -n and -m must be the same on both sides";
                return Err(format!("no message for {TIME_LIMIT:?}: {same}{hint}").into());
            }
        }
    }

    fn poll(&mut self) -> Result<Vec<u64>> {
        if !self.rules.timestamps {
            let mut completions = [WorkCompletion::default(); 2];
            let count = self.cq.poll(&mut completions)?;
            let ids = completions[..count]
                .iter()
                .map(|done| Ok(done.result()?.wr_id));
            return ids.collect();
        }
        let mut completions = [ExtendedCompletion::default(); 2];
        let count = self.cq.poll_extended(&mut completions)?;
        let mut ids = Vec::new();
        for done in &completions[..count] {
            let id = done.completion.result()?.wr_id;
            if id == RECEIVE {
                self.ticks.extend(done.timestamp);
            }
            ids.push(id);
        }
        Ok(ids)
    }

    /// Returns the least, the mean and the longest time between arrivals, in ticks of the device's
    /// clock. Returns `None` if times were not read, or less than two messages arrived.
    #[must_use]
    pub fn between_receives(&self) -> Option<[u64; 3]> {
        let steps = self.ticks.windows(2);
        let steps: Vec<_> = steps.map(|two| two[1].wrapping_sub(two[0])).collect();
        let mean = steps.iter().sum::<u64>().checked_div(steps.len() as u64)?;
        Some([*steps.iter().min()?, mean, *steps.iter().max()?])
    }

    /// Checks every byte of the last message: the client gets its own messages back.
    ///
    /// # Errors
    ///
    /// If a byte differs.
    pub fn check(&self) -> Result<()> {
        let mut came = vec![0; self.memory.len()];
        match &self.device_memory {
            Some(memory) => memory.copy_out(0, &mut came)?,
            None => self.memory.copy_out(0, &mut came),
        }
        let ours = content(came.len());
        // The C program sends other content, except for the first byte of each page.
        let theirs = |at: usize| if at.is_multiple_of(PAGE) { 0 } else { FILLING };
        let wrong =
            |at: &usize| came[*at] != ours[*at] && (self.rules.begins || came[*at] != theirs(*at));
        match (0..came.len()).find(wrong) {
            Some(at) => Err(format!("invalid data in page {}, at byte {at}", at / PAGE).into()),
            None => Ok(()),
        }
    }
}

fn content(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| {
            if at.is_multiple_of(PAGE) {
                0
            } else {
                ((at * 31) >> 3) as u8
            }
        })
        .collect()
}
