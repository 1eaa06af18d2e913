use crate::case::{Case, Cue, Ends, PAIRS, Side, Who};
use toolbox::Listening;

const CM: Listening = Listening::Cm(7471);
const TCP: Listening = Listening::Tcp(7471);

fn side(who: Who, options: &str) -> Side {
    Side::new(who, "rstream", options)
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (server, client) in PAIRS {
        // What, the options of both, of the server, of the client, and where the server can be
        // seen.
        for (what, both, from, to, ready) in [
            ("one test, checked", "-S 1000 -T v", "", "{server}", CM),
            (
                "one byte at a time, checked",
                "-S 1 -C 1 -I 1000 -T v",
                "",
                "{server}",
                CM,
            ),
            (
                "1000 transfers in a row, more than there are credits for",
                "-S 1 -C 1000 -I 5 -T v",
                "",
                "{server}",
                CM,
            ),
            (
                "64 KiB, checked",
                "-S 65536 -C 200 -T v",
                "",
                "{server}",
                CM,
            ),
            (
                "3 MiB, larger than the buffers, checked",
                "-S 3145728 -C 5 -T v",
                "",
                "{server}",
                CM,
            ),
            (
                "sizes that fit nothing, small buffers",
                "-S 12347 -C 300 -T v -B 5000",
                "",
                "{server}",
                CM,
            ),
            ("calls that block", "-S 5000 -T b -T v", "", "{server}", CM),
            ("waiting first", "-S 5000 -T a -T v", "", "{server}", CM),
            ("IPv6", "-S 5000 -T v", "-b {server6}", "{server6}", CM),
            ("inline", "-S 200 -i 200 -T v", "", "{server}", CM),
            ("keepalive", "-S 5000 -k 1 -T v", "", "{server}", CM),
            (
                "librdmacm finds the address",
                "-S 5000 -T r -T v -p 7472",
                "-b {server}",
                "{server}",
                Listening::Cm(7472),
            ),
            ("over TCP", "-S 5000 -T s -T v", "", "{server}", TCP),
            (
                "over TCP, served in a fork",
                "-S 5000 -T f -T v",
                "",
                "{server}",
                TCP,
            ),
        ] {
            let serving = side(server, &format!("{both} {from}")).says("custom");
            let asking = side(client, &format!("{both} -s {to}")).says("custom");
            let case = Case::new("rstream", what, ready, serving, asking);
            let quick = ["one test, checked", "64 KiB, checked", "IPv6"];
            cases.push(if quick.contains(&what) {
                case.quick()
            } else {
                case
            });
        }
    }
    // It takes minutes, so only one has it.
    cases.push(
        Case::new(
            "rstream",
            "as it comes: two connections",
            CM,
            side(Who::C, "").says("1m_bw"),
            side(Who::Rust, "-s {server}").says("1m_bw"),
        )
        .seconds(300),
    );
    cases.extend(preloaded());
    cases.extend(bad_input());
    cases
}

/// A TCP program in C that knows nothing of RDMA: its calls go to rsockets.
fn preloaded() -> Vec<Case> {
    let tcp = |options: &str| {
        let tcp = side(Who::C, &format!("-T s {options}"));
        tcp.with("LD_PRELOAD=/usr/$LIB/rsocket/librspreload.so.1")
    };
    let both = "-S 5000 -I 20 -C 10 -T v -T b";
    let case = |what, server, client| Case::new("rstream", what, CM, server, client).quick();
    vec![
        case(
            "a TCP client under librspreload.so",
            side(Who::Rust, both).says("custom"),
            tcp(&format!("{both} -s {{server}}")).says("custom"),
        ),
        case(
            "a TCP server under librspreload.so",
            tcp(both).says("custom"),
            side(Who::Rust, &format!("{both} -s {{server}}")).says("custom"),
        ),
    ]
}

fn bad_input() -> Vec<Case> {
    let ours = |options: &str| side(Who::Rust, options).ends(Ends::Badly);
    // Ours, which tells of the connection's events.
    let traced = |options: &str| ours(options).with("RUST_LOG=rdmsg::rsocket=debug");
    let case = |what, server, client| Case::new("rstream", what, CM, server, client);
    vec![
        case(
            "nobody listens on this port",
            ours("").ends(Ends::WhenKilled),
            ours("-s {server} -p 7999").says("refused"),
        ),
        case(
            "a client that is no rsocket",
            ours("").ends(Ends::WhenKilled),
            Side::new(Who::C, "rdma_client", "-s {server} -p 7471").ends(Ends::Badly),
        ),
        case(
            "a server that is no rsocket",
            // It is not told that its client is gone.
            Side::new(Who::C, "rdma_server", "-p 7471").ends(Ends::WhenKilled),
            ours("-s {server}").says("not an rsocket"),
        ),
        case(
            "the server expects more",
            ours("-S 1000 -C 10").says("must be the same"),
            // Each waits for the other then, and ours not for ever.
            side(Who::C, "-S 1000 -C 5 -s {server}").ends(Ends::WhenKilled),
        ),
        case(
            "a client that is killed",
            traced("").says("must be the same"),
            side(Who::C, "-s {server}").killed_on(Cue::OfTheOther("ESTABLISHED")),
        ),
        case(
            "a server that is killed",
            side(Who::C, "").killed_on(Cue::OfTheOther("ESTABLISHED")),
            traced("-s {server}").says("must be the same"),
        ),
        Case::new(
            "rstream",
            "a client of endpoints",
            CM,
            ours("").ends(Ends::WhenKilled),
            Side::new(Who::Rust, "cm_client", "{server}:7471")
                .ends(Ends::Badly)
                .says("speaks the protocol of rsockets"),
        ),
        Case::new(
            "rstream",
            "a client of endpoints at the C program",
            CM,
            side(Who::C, "").ends(Ends::WhenKilled),
            Side::new(Who::Rust, "cm_client", "{server}:7471")
                .ends(Ends::Badly)
                .says("speaks another protocol")
                .says("rdmsg::rsocket::Stream"),
        ),
        case(
            "a server of endpoints",
            Side::new(Who::Rust, "cm_server", "{server}:7471").ends(Ends::WhenKilled),
            ours("-s {server}").says("accepts endpoints, not rsockets"),
        ),
        case(
            "a client of IPv6 at a server of IPv4",
            ours("-b {server}").ends(Ends::WhenKilled),
            ours("-s {server6}").says("the other of IPv4 and IPv6"),
        ),
        case(
            "a size that is none",
            ours("").ends(Ends::WhenKilled),
            ours("-S many -s {server}").says("many is neither"),
        ),
    ]
}
