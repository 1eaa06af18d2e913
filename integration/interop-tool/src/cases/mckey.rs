use crate::case::{Case, Ends, PAIRS, Side, Who};
use toolbox::Listening;

const DONE: &str = "data transfers complete";

fn side(who: Who, options: &str) -> Side {
    Side::new(who, "mckey", options)
}

/// The receiver is the server: it is there first.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (receiver, sender) in PAIRS {
        // What, the options of both, of the receiver, and of the sender.
        for (what, both, from, to) in [
            ("as it comes", "-m 239.1.2.3", "", ""),
            ("one byte, once", "-m 239.1.2.3 -S 1 -C 1", "", ""),
            ("a whole packet", "-m 239.1.2.3 -S 1024 -C 50", "", ""),
            // More at once may be lost: nothing slows the sender down.
            ("200 datagrams", "-m 239.1.2.3 -C 200", "", ""),
            ("three members", "-m 239.1.2.3", "-c 3", ""),
            ("a sender that only sends", "-m 239.1.2.3", "", "-o"),
        ] {
            let receiving = format!("{both} {from} -b {{server}}");
            let sending = format!("{both} {to} -s -b {{client}}");
            let case = Case::new(
                "mckey",
                what,
                Listening::Datagrams,
                side(receiver, &receiving).says(DONE),
                side(sender, &sending).says(DONE),
            );
            cases.push(if what == "as it comes" {
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
    let case = |what, options: &str, says: &str| {
        let sender = side(Who::Rust, options).ends(Ends::Badly).says(says);
        let receiver = side(Who::Rust, "-m 239.1.2.3 -b {server}").ends(Ends::WhenKilled);
        Case::new("mckey", what, Listening::Datagrams, receiver, sender)
    };
    vec![
        case(
            "an address of no group",
            "-m {server} -s",
            "no multicast address",
        ),
        case("no group", "-s", "-m <ADDRESS>"),
        // Of kernels that do not join groups of IPv6 on Ethernet.
        case(
            "a group of IPv6",
            "-m ff0e::7 -b {client6} -s",
            "not supported",
        ),
        case(
            "a global address",
            "-M ff12::1 -b {client} -s",
            "(AF_IB) are not supported",
        ),
        case(
            "without loopback",
            "-m 239.1.2.3 -b {client} -s -l",
            "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB",
        ),
    ]
}
