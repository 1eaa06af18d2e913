use std::time::Duration;

use clap::{Args, CommandFactory, error::ErrorKind};
use rdmsg::Config;

use super::address::{Address, Scheme};
use crate::{
    Cli,
    duration::{resume, seconds},
};

/// Carries plain TCP connections over RDMA
///
/// For programs that stay unchanged. One bridge runs on the host of the clients, and one on the
/// host of the service. They carry the bytes of each connection over RDMA, in both directions. One
/// end of a bridge is a plain TCP socket, and the other a stream of rdmsg:
///
///   tcp://HOST:PORT        a plain TCP socket, of a program without rdmsg
///   rdma://HOST:PORT       a stream of rdmsg over RDMA; HOST is an address of an RDMA device
///   rdmsg://HOST:PORT      a stream of rdmsg over RDMA if a device serves the address, or over TCP
///   rdmsg+tcp://HOST:PORT  a stream of rdmsg over TCP: its own protocol on a TCP socket, for
///                          hosts without RDMA
///
/// A bridge passes on the end of a direction (half close), and a reset, which ends the other side
/// with an error, not with an end of file. A slow reader stops the writer. 0.0.0.0 listens on all
/// addresses, and port 0 chooses a free port, which is printed.
///
/// SIGUSR1 prints the counters: open connections; all connections; refused ones, beyond
/// --max-connections; failed ones, whose target was not reached or of which a side ended with an
/// error; and the bytes to the target, and back. After SIGINT and SIGTERM the bridge stops
/// listening, gives connections --drain seconds, resets the others, and exits with 0. A second
/// signal ends it at once, with 128 and the number of the signal. It exits with 1 if it cannot
/// start or go on, and with 2 for a wrong command line. RUST_LOG sets the level of the log on
/// stderr; the default is `warn`.
#[derive(Args, Debug)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  A redis server on the host 10.8.0.1, whose RDMA device has this address too; there:
    rdmsg bridge --listen rdma://10.8.0.1:7471 --to tcp://127.0.0.1:6379
  and on each host with clients:
    rdmsg bridge --listen tcp://127.0.0.1:6379 --to rdma://10.8.0.1:7471
    redis-cli -h 127.0.0.1 ping
  To try it on one host, without RDMA:
    rdmsg bridge --listen rdmsg+tcp://127.0.0.1:7471 --to tcp://127.0.0.1:6379 &
    rdmsg bridge --listen tcp://127.0.0.1:6380 --to rdmsg+tcp://127.0.0.1:7471 &
    redis-cli -p 6380 ping"
)]
pub(crate) struct Options {
    /// The address on which it accepts connections.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Address,

    /// The address to which it connects.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) to: Address,

    /// The maximum number of connections; a further one is closed at once.
    #[arg(long, value_name = "N", default_value_t = 4096,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_connections: u64,

    /// The time limit of connecting to the target.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = connect_timeout)]
    pub(crate) connect_timeout: Duration,

    /// The time for which connections may continue after the first signal.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub(crate) drain: Duration,

    /// Print the counters this often [default: on SIGUSR1 and at the end only]
    #[arg(long, value_name = "SECONDS", value_parser = interval)]
    pub(crate) report: Option<Duration>,

    /// Threads that carry bytes [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,

    /// How long a connection that was lost between the bridges waits for the network, 0 to 3600.
    /// The plain ends notice only a pause. Both bridges need it; the smaller time counts. With 0,
    /// or after a restart of either bridge, a lost connection is reset. The bridge of the service
    /// keeps up to 1024 lost connections.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = resume)]
    pub(crate) resume: Duration,

    /// Export statistics for `rdmsg top`.
    #[arg(long)]
    pub(crate) statistics: bool,

    /// Longest piece in bytes that is sent into a buffer of the peer; longer ones the peer reads.
    /// The smaller value of both bridges counts. A connection over RDMA locks some 60 buffers of
    /// this size [default: 65536 with rdmsg+tcp:// and on machines without RDMA, otherwise 4096]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    pub(crate) eager_size: Option<u32>,
}

/// The eager size of connections that may go over RDMA, where buffers are locked memory.
const EAGER_SIZE: u32 = 4 << 10;

/// The eager size of connections over TCP. A buffer takes memory there when it is first used.
pub(super) const EAGER_SIZE_OVER_TCP: u32 = 64 << 10;

/// The memory of a connection for longer pieces, in bytes in each direction.
const LARGE_MEMORY: u64 = 256 << 10;

/// The longest piece in bytes in which a stream's bytes arrive.
const LONGEST_PIECE: u64 = 1 << 20;

/// The greatest number of bytes of one direction that both bridges buffer beyond the window, half
/// on each side.
const STREAM_BUFFER: u64 = 1 << 20;

/// The longest time for a close that the library takes.
const LONGEST_CLOSE: Duration = Duration::from_secs(600);

/// The number of pieces that may be in flight.
const WINDOW: u16 = 16;

/// The number of requests that may wait.
pub(super) const WAITING: u16 = 4096;

impl Options {
    /// Ends the program if the command line makes no sense.
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

    /// The configuration of streams over the transport of this scheme. `has_rdma` returns whether
    /// this machine has RDMA, if that counts.
    pub(super) fn stream_config(&self, scheme: Scheme, has_rdma: impl FnOnce() -> bool) -> Config {
        let eager_size = self.eager_size.unwrap_or_else(|| match scheme {
            Scheme::Rdma => EAGER_SIZE,
            Scheme::Rdmsg if has_rdma() => EAGER_SIZE,
            Scheme::Plain | Scheme::Rdmsg | Scheme::RdmsgTcp => EAGER_SIZE_OVER_TCP,
        });
        let mut config = Config::default().with(|config| {
            config.receive_window = WINDOW;
            config.send_depth = WINDOW;
            config.eager_size = Some(eager_size);
            config.large_memory = LARGE_MEMORY;
            config.max_message = LONGEST_PIECE;
            config.registration_cache = LARGE_MEMORY;
            config.stream_buffer = STREAM_BUFFER;
            config.connect_timeout = self.connect_timeout;
            config.resume = self.resume;
            // The close of a stream waits for the network, as the bytes before it do.
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
        Duration::ZERO => Err("it is 0".into()),
        interval => Ok(interval),
    }
}

fn connect_timeout(text: &str) -> Result<Duration, String> {
    let allowed = Duration::from_millis(10)..=Duration::from_secs(600);
    Some(seconds(text)?)
        .filter(|time| allowed.contains(time))
        .ok_or_else(|| "allowed is 0.01 to 600".into())
}

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a number from 1".into()),
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
