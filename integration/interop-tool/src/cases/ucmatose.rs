use crate::case::{Case, Cue, Ends, PAIRS, Side, Who};
use toolbox::Listening;

const PORT: Listening = Listening::Cm(7471);

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (server, client) in PAIRS {
        // What, the options of both, and the server's and the client's other options.
        for (what, both, from, to) in [
            ("one connection", "", "", "-s {server}"),
            ("one byte, once", "-S 1 -C 1", "", "-s {server}"),
            ("64 KiB", "-S 65536 -C 20", "", "-s {server}"),
            ("1000 messages", "-C 1000 -S 64", "", "-s {server}"),
            ("no messages", "-S 0 -c 5", "", "-s {server}"),
            ("100 connections", "-c 100", "", "-s {server}"),
            ("500 connections", "-c 500", "", "-s {server}"),
            ("migrated", "-c 10 -m", "", "-s {server}"),
            ("IPv6", "-c 5", "-b {server6}", "-s {server6}"),
            (
                "addresses, type of service, timeout",
                "-f ip -t 32 -a 15",
                "-b {server}",
                "-s {server} -b {client}",
            ),
        ] {
            let server =
                Side::new(server, "ucmatose", &format!("{both} {from}")).says("return status 0");
            let mut asking =
                Side::new(client, "ucmatose", &format!("{both} {to}")).says("return status 0");
            if !what.starts_with("no ") {
                asking = asking.says("data transfers complete");
            }
            let case = Case::new("ucmatose", what, PORT, server, asking);
            let quick = ["one connection", "no messages", "100 connections", "IPv6"];
            cases.push(if quick.contains(&what) {
                case.quick()
            } else {
                case
            });
        }
    }
    let serving = Side::new(Who::Rust, "ucmatose", "-c 1000 -C 2").says("return status 0");
    let asking = Side::new(Who::Rust, "ucmatose", "-c 1000 -C 2 -s {server}");
    let asking = asking.says("data transfers complete");
    cases.push(Case::new(
        "ucmatose",
        "1000 connections",
        PORT,
        serving,
        asking,
    ));
    cases.extend(bad_input());
    cases
}

fn bad_input() -> Vec<Case> {
    let ours = |options: &str| Side::new(Who::Rust, "ucmatose", options).ends(Ends::Badly);
    let theirs = |options: &str| Side::new(Who::C, "ucmatose", options);
    let case = |what, server, client| Case::new("ucmatose", what, PORT, server, client);
    let same = "must be the same on both sides";
    vec![
        case(
            "nobody listens on this port",
            ours("").ends(Ends::WhenKilled),
            ours("-s {server} -p 7999")
                .says("refused: nobody listens on this port")
                .says("return status -1"),
        ),
        case(
            "the server sends longer messages",
            theirs("-S 200").ends(Ends::Somehow),
            ours("-s {server} -S 100").says("return status -1"),
        ),
        case(
            "the server sends shorter messages",
            // It does not notice that its client is gone.
            theirs("-S 50").ends(Ends::WhenKilled),
            ours("-s {server} -S 100").says(same),
        ),
        case(
            "the client sends fewer messages",
            ours("-C 10").says(same),
            ours("-s {server} -C 5").ends(Ends::Somehow),
        ),
        case(
            "a client that is killed",
            ours("-c 2").ends(Ends::WhenKilled),
            // Into a pipe, C programs print at their end, unless told otherwise.
            Side::new(Who::C, "stdbuf", "-oL ucmatose -s {server} -c 1")
                .killed_on(Cue::OfItself("receiving data transfers")),
        ),
        case(
            "a client that is killed when messages are to come",
            ours("-C 10").says("messages are missing (DISCONNECTED)"),
            Side::new(Who::C, "stdbuf", "-oL ucmatose -s {server} -C 12")
                .killed_on(Cue::OfItself("receiving data transfers")),
        ),
        case(
            "a GID",
            ours("").ends(Ends::WhenKilled),
            ours("-f gid -s fe80::1").says("AF_IB"),
        ),
    ]
}
