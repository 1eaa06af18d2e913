use std::time::Duration;

use clap::{Args, CommandFactory, error::ErrorKind};
use rdmsg::Config;

use super::address::{Address, Scheme};
use crate::{
    Cli,
    arguments::{resume, seconds},
};

/// Carries plain TCP connections over RDMA
///
/// The programs that communicate need no change. One bridge runs on the host of the clients, and
/// one on the host of the service. They carry the bytes of each connection over RDMA, in both
/// directions. One end of a bridge is a plain TCP socket, and the other end is a stream of rdmsg:
///
///   tcp://HOST:PORT        a plain TCP socket, for a program that does not use rdmsg
///   rdma://HOST:PORT       a stream of rdmsg over RDMA; HOST is an address of an RDMA device
///   rdmsg://HOST:PORT      a stream of rdmsg over RDMA if a device serves the address, otherwise
///                          over TCP
///   rdmsg+tcp://HOST:PORT  a stream of rdmsg over TCP (the protocol of rdmsg in a TCP connection),
///                          for hosts without RDMA
///
/// A bridge forwards the end of each direction separately (half close). It also forwards a reset,
/// so the other side gets an error instead of an end of file. Before the reset, the other side
/// receives the bytes that arrived at the bridge. Bytes that a kernel discards at a reset are lost,
/// as with direct TCP. A slow reader blocks the writer. With the host 0.0.0.0, a bridge listens on
/// all addresses. With port 0, it listens on a free port and prints the port.
///
/// On SIGUSR1, the bridge prints its counters: connections that are open; the total of accepted
/// connections since the start; connections refused because of --max-connections; connections that
/// failed, because the target could not be reached or because an end failed; and the bytes sent to
/// the target and back.
///
/// On SIGINT or SIGTERM, the bridge stops listening and waits up to --drain seconds for its
/// connections to end. Then it resets the connections that are still open, and exits with status 0.
/// A second signal ends it immediately, with status 128 plus the number of the signal. The exit
/// status is 1 if the bridge cannot start or continue, and 2 for an invalid command line.
///
/// RUST_LOG sets the level of the log on stderr; the default is `warn`.
#[derive(Args, Debug)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  A redis server runs on a host whose RDMA device has the address 10.8.0.1. On this host:
    rdmsg bridge --listen rdma://10.8.0.1:7471 --to tcp://127.0.0.1:6379
  On each host with clients:
    rdmsg bridge --listen tcp://127.0.0.1:6379 --to rdma://10.8.0.1:7471
    redis-cli -h 127.0.0.1 ping
  To try it on one host, without RDMA:
    rdmsg bridge --listen rdmsg+tcp://127.0.0.1:7471 --to tcp://127.0.0.1:6379 &
    rdmsg bridge --listen tcp://127.0.0.1:6380 --to rdmsg+tcp://127.0.0.1:7471 &
    redis-cli -p 6380 ping"
)]
pub(crate) struct Options {
    /// The address on which the bridge accepts connections.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Address,

    /// The address to which the bridge connects.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) to: Address,

    /// The maximum number of open connections. The bridge resets further connections immediately.
    #[arg(long, value_name = "N", default_value_t = 4096,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_connections: u64,

    /// The time limit for connecting to the target.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = connect_timeout)]
    pub(crate) connect_timeout: Duration,

    /// The maximum time for which connections may continue after the first SIGINT or SIGTERM.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub(crate) drain: Duration,

    /// Print the counters at this interval [default: only on SIGUSR1 and at the end]
    #[arg(long, value_name = "SECONDS", value_parser = interval)]
    pub(crate) report: Option<Duration>,

    /// The number of threads that copy bytes [default: one per processor]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,

    /// The time limit for resuming a connection that was lost between the bridges, 0 to 3600. The
    /// programs at the plain ends notice only a pause. Both bridges need this option; the smaller
    /// limit applies. With 0, or if one bridge has restarted, a lost connection is reset. The
    /// bridge of the service keeps at most 1024 lost connections.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = resume)]
    pub(crate) resume: Duration,

    /// Export statistics for `rdmsg top`.
    #[arg(long)]
    pub(crate) statistics: bool,

    /// The maximum number of bytes that a bridge sends at once into a buffer of the other bridge.
    /// The other bridge reads larger pieces from the sender's memory. If the two bridges have
    /// different values, the smaller one applies. Over RDMA, each connection locks about 60 buffers
    /// of this size [default: 65536 with rdmsg+tcp:// and on hosts without RDMA, otherwise 4096]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    pub(crate) eager_size: Option<u32>,
}

/// The default eager size in bytes of connections that may use RDMA. The size is small, because the
/// buffers of such a connection are locked memory.
const EAGER_SIZE: u32 = 4 << 10;

/// The default eager size in bytes of connections over TCP. The size is large, because the buffers
/// of such a connection use no memory before their first use.
pub(super) const EAGER_SIZE_OVER_TCP: u32 = 64 << 10;

/// The memory of a connection for messages above the eager size, in bytes for each direction.
const LARGE_MEMORY: u64 = 256 << 10;

/// The maximum length in bytes of a message that carries bytes of a stream.
const LONGEST_PIECE: u64 = 1 << 20;

/// The maximum number of bytes that both bridges together hold in addition to the messages in the
/// window, for each direction. Each bridge holds at most half of this number.
const STREAM_BUFFER: u64 = 1 << 20;

/// The maximum value of `Config::close_timeout`.
const LONGEST_CLOSE: Duration = Duration::from_secs(600);

/// The maximum number of messages in flight in each direction.
const WINDOW: u16 = 16;

/// The maximum number of pending connection requests.
pub(super) const WAITING: u16 = 4096;

impl Options {
    /// Exits with an error if both ends are plain or both ends are rdmsg streams.
    pub(super) fn check(&self) {
        let plain = [&self.listen, &self.to].map(|end| end.scheme() == Scheme::Plain);
        let wrong = match plain {
            [true, true] => "both are plain TCP sockets",
            [false, false] => "both are streams of rdmsg",
            [true, false] | [false, true] => return,
        };
        let text = format!(
            "--listen {} --to {}: {wrong}. One end of a bridge is plain, tcp://HOST:PORT, and \
             the other speaks rdmsg: rdma://, rdmsg:// or rdmsg+tcp://",
            self.listen, self.to
        );
        let mut command = Cli::command();
        command.error(ErrorKind::ValueValidation, text).exit();
    }

    /// Returns the configuration of streams with this scheme. `has_rdma` returns true if this host
    /// has RDMA. This method calls `has_rdma` only if the eager size depends on the result.
    pub(super) fn stream_config(&self, scheme: Scheme, has_rdma: impl FnOnce() -> bool) -> Config {
        let eager_size = self.eager_size.unwrap_or_else(|| match scheme {
            Scheme::Rdma => EAGER_SIZE,
            Scheme::Rdmsg if has_rdma() => EAGER_SIZE,
            Scheme::Plain | Scheme::Rdmsg | Scheme::RdmsgTcp => EAGER_SIZE_OVER_TCP,
        });
        let mut config = Config::default().with(|config| {
            config.receive_window = Some(WINDOW);
            config.send_depth = Some(WINDOW);
            config.eager_size = Some(eager_size);
            config.large_memory = LARGE_MEMORY;
            config.max_message = LONGEST_PIECE;
            config.registration_cache = LARGE_MEMORY;
            config.stream_buffer = STREAM_BUFFER;
            config.connect_timeout = self.connect_timeout;
            config.resume = self.resume;
            // While a stream is suspended, its close waits until the stream is resumed. Therefore
            // raise the close timeout to `resume`, but not above `LONGEST_CLOSE`.
            config.close_timeout = config.close_timeout.max(self.resume).min(LONGEST_CLOSE);
        });
        if let Some(transport) = scheme.transport() {
            config.transport = transport;
        }
        config
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        Duration::ZERO => Err("the interval must be more than 0 seconds".into()),
        interval => Ok(interval),
    }
}

fn connect_timeout(text: &str) -> Result<Duration, String> {
    let allowed = Duration::from_millis(10)..=Duration::from_secs(600);
    Some(seconds(text)?)
        .filter(|time| allowed.contains(time))
        .ok_or_else(|| "the time must be 0.01 to 600 seconds".into())
}

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a number of at least 1".into()),
        Ok(threads) => Ok(threads),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn eager_sizes(has_rdma: bool, more: &[&str]) -> [Option<u32>; 3] {
        let line = ["bridge", "--listen", "tcp://a:1", "--to", "rdmsg+tcp://a:2"];
        let Line { options } = Line::parse_from([&line[..], more].concat());
        let schemes = [Scheme::Rdma, Scheme::Rdmsg, Scheme::RdmsgTcp];
        schemes.map(|scheme| options.stream_config(scheme, || has_rdma).eager_size)
    }

    #[test]
    fn eager_size_holds_a_piece_if_nothing_is_locked() {
        assert_eq!(eager_sizes(true, &[]), [4096, 4096, 65536].map(Some));
        assert_eq!(eager_sizes(false, &[]), [4096, 65536, 65536].map(Some));
        let more = ["--eager-size", "8192"];
        assert_eq!(eager_sizes(false, &more), [Some(8192); 3]);
    }
}
