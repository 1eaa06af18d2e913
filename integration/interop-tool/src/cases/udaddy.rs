use crate::case::{Case, Ends, PAIRS, Side, Who};
use toolbox::Listening;

const PORT: Listening = Listening::Cm(7174);
const DONE: &str = "data transfers complete";

fn side(who: Who, options: &str) -> Side {
    Side::new(who, "udaddy", options)
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (server, client) in PAIRS {
        // What, the options of both, of the server, and of the client.
        for (what, both, from, to) in [
            ("as it comes", "", "", "-s {server}"),
            ("one byte, once", "-S 1 -C 1", "", "-s {server}"),
            ("a whole packet", "-S 1024 -C 50", "", "-s {server}"),
            // More at once may be lost: nothing slows the sender down.
            ("200 datagrams", "-C 200", "", "-s {server}"),
            ("20 peers", "-c 20", "", "-s {server}"),
            ("IPv6", "", "-b {server6}", "-s {server6}"),
            (
                "addresses given",
                "",
                "-b {server}",
                "-b {client} -s {server}",
            ),
            ("type of service", "-t 32", "", "-s {server}"),
            ("port space by number", "-p 0x111", "", "-s {server}"),
            ("nothing at all", "-C 0", "", "-s {server}"),
            ("datagrams of no bytes are none", "-S 0", "", "-s {server}"),
        ] {
            let says = |side: Side| {
                if ["nothing at all", "datagrams of no bytes are none"].contains(&what) {
                    side
                } else {
                    side.says(DONE)
                }
            };
            let serving = says(side(server, &format!("{both} {from}")));
            let asking = says(side(client, &format!("{both} {to}")));
            let case = Case::new("udaddy", what, PORT, serving, asking);
            let quick = ["as it comes", "IPv6", "datagrams of no bytes are none"];
            cases.push(if quick.contains(&what) {
                case.quick()
            } else {
                case
            });
        }
    }
    cases.extend(bad_input());
    cases
}

fn bad_input() -> Vec<Case> {
    let ours = |options: &str| side(Who::Rust, options).ends(Ends::Badly);
    let case = |what, server, client| Case::new("udaddy", what, PORT, server, client);
    vec![
        case(
            "more than a packet",
            ours("").ends(Ends::WhenKilled),
            ours("-S 5000 -s {server}").says("a datagram is one packet"),
        ),
        case(
            "a server of connections",
            Side::new(Who::Rust, "rping", "-s").ends(Ends::WhenKilled),
            ours("-s {server}").says("instead of ESTABLISHED"),
        ),
        case(
            "the client's datagrams are longer",
            ours("-S 50").says("-S must be the same on both sides"),
            side(Who::C, "-s {server}").ends(Ends::WhenKilled),
        ),
        case(
            "the client's datagrams are shorter",
            ours("-S 200").says("a datagram of 100 bytes, not 200"),
            side(Who::C, "-s {server}").ends(Ends::WhenKilled),
        ),
        case(
            "the client sends fewer datagrams",
            ours("-C 10").says("5 of 10 datagrams have come"),
            ours("-C 5 -s {server}").says("0 of 5 datagrams have come"),
        ),
        case(
            "a port space that is none",
            ours("").ends(Ends::WhenKilled),
            ours("-p 7174 -s {server}").says("0x111 for UDP"),
        ),
    ]
}
