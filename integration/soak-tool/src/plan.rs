use std::time::Duration;

use fastrand::Rng;
use rdmsg::{Config, Polling};
use toolbox::{Side, random};

/// How many listeners the server has, each with a configuration of its own.
pub(crate) const LISTENERS: u64 = 8;

/// What is to happen on one connection. Seed and number of the connection decide all of it, so both
/// sides know it.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The connection's number.
    pub(crate) id: u64,
    /// Which of the server's listeners takes it.
    pub(crate) listener: u64,
    pub(crate) end: End,
    halves: [Half; 2],
}

/// One side's part.
#[derive(Debug)]
pub(crate) struct Half {
    pub(crate) config: Config,
    /// How many messages it sends, unless the other side's end comes first.
    pub(crate) messages: u64,
    pub(crate) reading: Reading,
}

/// How a side waits for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reading {
    /// A thread in `recv`.
    Blocking,
    /// One thread in a `select!` over the `completions` of several connections.
    Selecting,
    /// One thread that calls `try_recv` on several connections in turn.
    Trying,
}

/// How the connection ends. A side that ends it has sent all its messages before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// One side closes when it has all messages of the other's.
    Close(Side),
    /// One side closes whatever the other is doing, which is most likely to be sending.
    CloseEarly(Side),
    /// Both close, without a word about it.
    CloseBoth,
    /// One side drops its handles when it has taken so many messages.
    Drop(Side, u64),
    /// One side aborts with a code.
    Abort(Side, u32),
}

impl End {
    /// The name under which ends are counted.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Close(_) => "closed when all was received",
            Self::CloseEarly(_) => "closed while the other side was sending",
            Self::CloseBoth => "closed by both sides",
            Self::Drop(..) => "dropped",
            Self::Abort(..) => "aborted",
        }
    }
}

impl Plan {
    pub(crate) fn new(seed: u64, id: u64) -> Self {
        let mut rng = random(&[seed, id, u64::from(b'p')]);
        let listener = rng.u64(..LISTENERS);
        let mut halves = [config(&mut rng), listener_config(seed, listener)]
            .map(|config| Half::new(config, &mut rng));
        let by = Side::BOTH[rng.usize(..2)];
        let others = &mut halves[by.other() as usize];
        let end = match rng.u32(..100) {
            0..35 => End::Close(by),
            35..55 => {
                others.messages *= 4;
                End::CloseEarly(by)
            }
            55..65 => End::CloseBoth,
            65..80 => {
                others.messages *= 2;
                End::Drop(by, rng.u64(1..=others.messages))
            }
            _ => {
                others.messages *= 2;
                End::Abort(by, rng.u32(..))
            }
        };
        Self {
            id,
            listener,
            end,
            halves,
        }
    }

    pub(crate) fn half(&self, side: Side) -> &Half {
        &self.halves[side as usize]
    }

    /// Up to how many bytes a message goes right into a buffer that waits for it: what both sides
    /// have buffers for.
    pub(crate) fn eager_size(&self) -> u32 {
        let [client, server] = &self.halves;
        let sizes = [client.config.eager_size, server.config.eager_size];
        sizes.into_iter().flatten().min().unwrap_or(u32::MAX)
    }
}

impl Half {
    fn new(config: Config, rng: &mut Rng) -> Self {
        Self {
            config,
            messages: match rng.u32(..10) {
                0..3 => rng.u64(1..=10),
                3..8 => rng.u64(10..=60),
                _ => rng.u64(60..=300),
            },
            reading: match rng.u32(..3) {
                0 => Reading::Blocking,
                1 => Reading::Selecting,
                _ => Reading::Trying,
            },
        }
    }
}

/// The configuration of one of the server's listeners.
pub(crate) fn listener_config(seed: u64, listener: u64) -> Config {
    config(&mut random(&[seed, listener, u64::from(b'l')]))
}

/// Any configuration that makes sense, small windows and rings among them. Only the waits that tell
/// a peer that is gone are always long: here none goes, but an emulated one can be very slow.
fn config(rng: &mut Rng) -> Config {
    let mut config = Config::default();
    config.receive_window = one_of(rng, &[1, 2, 3, 8, 16, 64, 128]);
    config.send_depth = one_of(rng, &[1, 2, 5, 16, 64]);
    config.eager_size = Some(one_of(rng, &[64, 256, 1024, 4096, 16 << 10, 64 << 10]));
    // Enough for all endpoints, and for those that are still being closed, but not for all of their
    // windows.
    if rng.bool() {
        config.shared_receive = Some(400);
        config.eager_size = Some(one_of(rng, &[256, 4096]));
    }
    config.max_message = one_of(rng, &[16 << 10, 1 << 20, 1 << 30, 1 << 30]);
    config.large_memory = one_of(rng, &[64 << 10, 1 << 20, 16 << 20]);
    config.registration_cache = one_of(rng, &[0, 1 << 20, 16 << 20]);
    config.max_inline = one_of(rng, &[0, 64, 256]);
    config.polling = one_of(
        rng,
        &[
            Polling::Event,
            Polling::Event,
            Polling::default(),
            Polling::default(),
            Polling::Busy,
        ],
    );
    config.keepalive_interval = one_of(
        rng,
        &[
            None,
            Some(Duration::from_millis(100)),
            Some(Duration::from_secs(2)),
        ],
    );
    config.keepalive_timeout = Duration::from_secs(60);
    config.close_timeout = Duration::from_secs(60);
    config.connect_timeout = Duration::from_secs(60);
    config
}

fn one_of<T: Copy>(rng: &mut Rng, values: &[T]) -> T {
    values[rng.usize(..values.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_everything() {
        for id in 0..100 {
            let (one, same) = (Plan::new(9, id), Plan::new(9, id));
            assert_eq!(format!("{one:?}"), format!("{same:?}"));
            let other = Plan::new(10, id);
            assert_ne!(format!("{one:?}"), format!("{other:?}"));
        }
    }

    #[test]
    fn nobody_waits_to_drop_for_messages_that_never_come() {
        for id in 0..1000 {
            let plan = Plan::new(11, id);
            if let End::Drop(by, after) = plan.end {
                assert!((1..=plan.half(by.other()).messages).contains(&after));
            }
        }
    }
}
