//! The message exchange of `rc_pingpong` between two connected queue pairs, and a check of the
//! device capabilities that the program's options require.

use std::time::{Duration, Instant};

use rdmsg::verbs::{
    AccessFlags, Advice, CompletionChannel, CompletionQueue, Context, DeviceMemory,
    ExtendedCompletion, MemoryRegion, OdpCaps, OdpTransportCaps, ProtectionDomain, QpCap,
    QpInitAttr, QueuePair, RecvWr, SendWr, Sge, WorkCompletion,
};

use crate::Result;

/// The time limit for the next completion. The wait needs a limit, because without the connection
/// manager no event reports that the peer has exited.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// The likely cause if no message arrives.
const ANOTHER: &str = "the peer must run ibv_rc_pingpong: the queue pairs of ibv_uc_pingpong and \
                       ibv_ud_pingpong have another type, and do not reply";
/// The value of each byte of a message if this side does not check messages. The C program uses the
/// same value.
const FILLING: u8 = 0x7b;
/// The page size in bytes. When the C program checks a message, it requires the first byte of each
/// page to be zero.
const PAGE: usize = 4096;
/// The ids of work requests.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

/// The parameters of the message exchange.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "programs set each field")]
pub struct Rules {
    /// The size of a message in bytes.
    pub size: u32,
    /// The number of messages in each direction.
    pub iters: u32,
    /// The maximum number of posted receives.
    pub rx_depth: u32,
    /// Whether this side sends the first message.
    pub begins: bool,
    /// Whether to sleep until an event reports completions, instead of polling.
    pub events: bool,
    /// Whether to check each byte of the final message.
    pub check: bool,
    /// Whether to record the arrival times of messages.
    pub timestamps: bool,
    /// Whether to post with the `ibv_wr_*` functions.
    pub new_send: bool,
    /// Whether the device prefetches the pages of the message memory.
    pub prefetch: bool,
    /// The memory that contains the messages.
    pub memory_kind: MemoryKind,
}

/// The kinds of memory for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "these are all kinds")]
pub enum MemoryKind {
    /// Registered memory, whose pages are pinned.
    Pinned,
    /// Memory with on-demand paging: the device loads each page on its first access.
    OnDemand,
    /// Memory with on-demand paging, in a region that covers the whole address space of the
    /// process.
    Implicit,
    /// Memory on the device.
    Device,
}

impl Rules {
    /// Checks that the device has the capabilities that these parameters require.
    ///
    /// # Errors
    ///
    /// Fails if the device lacks a capability. The error names the missing capability.
    pub fn check_device(&self, context: &Context) -> Result<()> {
        let can = context.query_device_ex()?;
        let both = OdpTransportCaps::SEND | OdpTransportCaps::RECV;
        let on_demand =
            can.odp_caps().contains(OdpCaps::SUPPORT) && can.rc_odp_caps().contains(both);
        let capability = match self.memory_kind {
            MemoryKind::OnDemand | MemoryKind::Implicit if !on_demand => {
                "on-demand paging for sends and receives of reliable connections (odp_caps)"
            }
            MemoryKind::Implicit if !can.odp_caps().contains(OdpCaps::SUPPORT_IMPLICIT) => {
                "on-demand paging of all memory (IBV_ODP_SUPPORT_IMPLICIT)"
            }
            MemoryKind::Device if can.max_dm_size() < self.size.into() => {
                "enough device memory (max_dm_size)"
            }
            _ if self.timestamps && can.completion_timestamp_mask() == 0 => {
                "timestamps of completions (completion_timestamp_mask)"
            }
            _ => return Ok(()),
        };
        Err(format!("{} does not have {capability}", context.device_name()).into())
    }
}

/// A queue pair and the memory for messages. All messages use the same memory.
#[derive(Debug)]
pub struct PingPong {
    /// The queue pair. The caller must connect it before [`play`](Self::play).
    pub qp: QueuePair,
    rules: Rules,
    cq: CompletionQueue,
    done: CompletionChannel,
    memory: MemoryRegion,
    device_memory: Option<DeviceMemory>,
    /// The arrival times of messages, in ticks of the device's clock.
    ticks: Vec<u64>,
}

impl PingPong {
    /// Creates a queue pair in the state RESET, and fills the memory.
    ///
    /// # Errors
    ///
    /// Fails if the device lacks a capability, or if an object cannot be created.
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
        let memory = match rules.memory_kind {
            MemoryKind::Pinned => MemoryRegion::new(&pd, size, local)?,
            MemoryKind::OnDemand => MemoryRegion::new(&pd, size, local | AccessFlags::ON_DEMAND)?,
            MemoryKind::Implicit => MemoryRegion::new_implicit(&pd, size, local)?,
            MemoryKind::Device => {
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

    /// Posts `count` receives. The queue pair must have left the state RESET.
    ///
    /// # Errors
    ///
    /// Fails if `ibv_post_recv` fails.
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

    /// Exchanges all messages. The caller must post receives before this call.
    ///
    /// # Errors
    ///
    /// Fails if a work request fails, or if no message arrives within 20 s.
    pub fn play(&mut self) -> Result<()> {
        let Rules {
            iters,
            rx_depth,
            begins,
            ..
        } = self.rules;
        let (mut posted, mut sent, mut received) = (rx_depth, 0, 0);
        // A side sends its next message when its previous send has completed and a message has
        // arrived since that send.
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

    /// Waits for the next completions, and returns their ids. `first` must be true if no message
    /// has arrived yet; an error then contains the likely cause.
    fn completions(&mut self, first: bool) -> Result<Vec<u64>> {
        let hint = if first {
            format!("; {ANOTHER}")
        } else {
            String::new()
        };
        let start = Instant::now();
        loop {
            if self.rules.events {
                // Poll between `req_notify` and the wait, because completions before `req_notify`
                // cause no event.
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
                return Err(
                    format!("no message arrived within {TIME_LIMIT:?}: {same}{hint}").into(),
                );
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

    /// Returns the minimum, mean and maximum time between two arrivals, in ticks of the device's
    /// clock. Returns `None` without timestamps, or if fewer than two messages have arrived.
    #[must_use]
    pub fn between_receives(&self) -> Option<[u64; 3]> {
        let steps = self.ticks.windows(2);
        let steps: Vec<_> = steps.map(|two| two[1].wrapping_sub(two[0])).collect();
        let mean = steps.iter().sum::<u64>().checked_div(steps.len() as u64)?;
        Some([*steps.iter().min()?, mean, *steps.iter().max()?])
    }

    /// Checks each byte of the final message. The client expects the bytes that it has sent.
    ///
    /// # Errors
    ///
    /// Fails if a byte differs.
    pub fn check(&self) -> Result<()> {
        let mut received = vec![0; self.memory.len()];
        match &self.device_memory {
            Some(memory) => memory.copy_out(0, &mut received)?,
            None => self.memory.copy_out(0, &mut received),
        }
        let ours = content(received.len());
        // The server also accepts the content that the C program sends: zero in the first byte of
        // each page, and `FILLING` in all other bytes.
        let theirs = |at: usize| if at.is_multiple_of(PAGE) { 0 } else { FILLING };
        let wrong = |at: &usize| {
            received[*at] != ours[*at] && (self.rules.begins || received[*at] != theirs(*at))
        };
        match (0..received.len()).find(wrong) {
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
