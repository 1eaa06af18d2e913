use crate::case::{Case, Ends, Side, Who};
use toolbox::Listening;

const PORT: Listening = Listening::Tcp(19875);

/// The original is not among Debian's programs, so ours meets itself, a counterpart by hand, and
/// some that do not keep to the protocol.
pub(crate) fn cases() -> Vec<Case> {
    let ours = |options: &str| Side::new(Who::Rust, "rc_example", options);
    let bash = |line: &str| Side::new(Who::C, "bash", &format!("-c {line}")).ends(Ends::Somehow);
    let classic = |len: usize, server: &str| {
        Side::new(Who::Rust, "interop", &format!("--classic {len} {server}"))
    };
    let case = |what: &str, server, client| Case::new("rc_example", what, PORT, server, client);
    let talk = |what: &str, both: &str, server: &str| {
        case(
            what,
            ours(both).says("server buffer: \"WRITE operation\""),
            ours(&format!("{both} {server}"))
                .says("Message is: \"SEND operation \"")
                .says("server's buffer: \"READ operation \""),
        )
    };
    let mut cases = vec![
        talk("as it comes", "", "{server}").quick(),
        talk("TCP over IPv6", "", "{server6}"),
        talk("device, port, GID index", "-d rxe0 -i 1 -g 0", "{server}"),
        case(
            "a GID index that is not there",
            ours("").ends(Ends::WhenKilled),
            ours("-g 99 {server}")
                .ends(Ends::Badly)
                .says("no GID at index 99"),
        ),
        case(
            "nobody listens on this port",
            ours("").ends(Ends::WhenKilled),
            ours("-p 19876 {server}")
                .ends(Ends::Badly)
                .says("cannot connect to"),
        ),
        case(
            "a client that closes at once",
            ours("")
                .ends(Ends::Badly)
                .says("closed before it had sent where its buffer is"),
            bash("true>/dev/tcp/{server}/19875"),
        ),
        case(
            "a client that sends zeros",
            ours("").ends(Ends::Badly).says("cannot be"),
            bash("head${IFS}-c34${IFS}/dev/zero>/dev/tcp/{server}/19875"),
        ),
        case(
            "a client that sends less than it should",
            ours("")
                .ends(Ends::Badly)
                .says("closed before it had sent where its buffer is"),
            bash("head${IFS}-c33${IFS}/dev/zero>/dev/tcp/{server}/19875"),
        ),
    ];
    for len in [16, 18, 21, 300] {
        let text = |whole: &str| whole[..whole.len().min(len)].to_owned();
        cases.push(case(
            &format!("a client with a buffer of {len} bytes"),
            ours("").says(format!(
                "server buffer: \"{}\"",
                text("RDMA write operation")
            )),
            classic(len, "{server}")
                .says("Message is: 'SEND operation '")
                .says("server's buffer: 'READ operation '"),
        ));
        cases.push(case(
            &format!("a server with a buffer of {len} bytes"),
            classic(len, "").says("server buffer: 'WRITE operation'"),
            ours("{server}")
                .says("Message is: \"SEND operation \"")
                .says(format!(
                    "server's buffer: \"{}\"",
                    text("RDMA read operation ")
                )),
        ));
    }
    cases.push(case(
        "a client whose buffer is too short",
        ours("")
            .ends(Ends::Badly)
            .says("less room than the 16 bytes of this message"),
        classic(8, "{server}").ends(Ends::Badly),
    ));
    cases.push(case(
        "a server whose message is too long",
        classic(5000, "").ends(Ends::Badly),
        ours("{server}")
            .ends(Ends::Badly)
            .says("longer than the 4096 bytes that there is room for"),
    ));
    cases
}
