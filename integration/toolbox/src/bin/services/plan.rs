//! Parses `plan.txt`, which lists the servers, their clients and the expected results.

use anyhow::{Context, Result, bail};
use toolbox::sections;

/// A program that runs on one of the hosts, and its expected behaviour.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) expected: Expected,
    pub(crate) command: String,
}

#[derive(Debug)]
pub(crate) enum Expected {
    /// A script that runs on the server's host and starts the service to which the server forwards.
    Behind,
    /// A script that stops the service started by `Behind`.
    End,
    /// A server. It must print that it listens.
    Server,
    /// A bridge on the clients' host. The clients on the following lines connect to this bridge.
    Near,
    Client(SuccessSign),
    /// A client that must fail with the given error, because the network is cut while the client
    /// runs.
    Cut(StartSign, String),
    /// A client that must succeed and print the given text, although the network is cut for a while
    /// during its work.
    Outage(StartSign, String),
}

/// How to recognise that a client has succeeded.
#[derive(Debug)]
pub(crate) enum SuccessSign {
    /// The client prints the given text.
    Text(String),
    /// The client writes a page of the right length to [`PAGE_FILE`].
    Page,
    /// The client prints a rate: a number followed by the given unit.
    Rate(String),
}

/// How to recognise that a client has started its work.
#[derive(Debug)]
pub(crate) enum StartSign {
    /// The client prints the given text.
    Says(String),
    /// The given shell command succeeds on the server's host.
    There(String),
    /// The given shell command succeeds on the client's host.
    Here(String),
}

/// The file to which a client writes a page.
pub(crate) const PAGE_FILE: &str = "/tmp/page";

/// The file with the server's self-signed certificate, on both hosts.
pub(crate) const CERTIFICATE: &str = "/tmp/services.pem";

/// Returns the services of the plan, each with its name and its lines.
pub(crate) fn services() -> Result<Vec<(&'static str, Vec<Line>)>> {
    let services = sections(include_str!("plan.txt")).map(|(name, lines)| {
        let text = lines.join("\n").replace("\n ", " ");
        Ok((name, text.lines().map(line).collect::<Result<_>>()?))
    });
    services.collect()
}

fn line(text: &str) -> Result<Line> {
    let (expected, command) = text.split_once(" <- ").context(text.to_owned())?;
    let (what, more) = expected.split_once(' ').unwrap_or((expected, ""));
    let more = more.replace("\\n", "\n");
    let expected = match what {
        "behind" => Expected::Behind,
        "end" => Expected::End,
        "server" => Expected::Server,
        "near" => Expected::Near,
        "cut" => {
            let (begun, error) = begun(&more)?;
            Expected::Cut(begun, error)
        }
        "outage" => {
            let (begun, text) = begun(&more)?;
            Expected::Outage(begun, text)
        }
        "says" => Expected::Client(SuccessSign::Text(more)),
        "page" => Expected::Client(SuccessSign::Page),
        "rate" => Expected::Client(SuccessSign::Rate(more)),
        _ => bail!("unknown expectation {expected:?}"),
    };
    let command = command.to_owned();
    Ok(Line { expected, command })
}

/// Parses two parts that ` | ` separates: the sign that a client has started its work, and the text
/// that the client must print later.
fn begun(how: &str) -> Result<(StartSign, String)> {
    let (begun, error) = how.rsplit_once(" | ").context(how.to_owned())?;
    let (sign, text) = begun.split_once(' ').context(how.to_owned())?;
    let text = text.to_owned();
    let begun = match sign {
        "says" => StartSign::Says(text),
        "there" => StartSign::There(text),
        "here" => StartSign::Here(text),
        _ => bail!("unknown sign {sign:?}"),
    };
    Ok((begun, error.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_is_read_whole() {
        let services = services().unwrap();
        let names: Vec<_> = services.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), 13);
        assert_eq!(
            (names[0], names[8], names[9]),
            ("resp_server", "redis", "nginx")
        );
        let lines = |is: fn(&Expected) -> bool| {
            let lines = services.iter().flat_map(|(_, lines)| lines);
            lines.filter(|line| is(&line.expected)).count()
        };
        use Expected::{Behind, Client, Cut, Near, Outage, Server};
        assert_eq!(lines(|it| matches!(it, Client(_))), 46);
        assert_eq!(lines(|it| matches!(it, Cut(..))), 7);
        assert_eq!(lines(|it| matches!(it, Outage(..))), 2);
        assert_eq!(lines(|it| matches!(it, Server)), 13);
        let [behind, server, _, near, .., cut] = &services[8].1[..] else {
            panic!()
        };
        assert!(matches!(behind.expected, Behind) && matches!(server.expected, Server));
        assert!(behind.command.ends_with("sleep 0.05; done"));
        assert!(matches!(near.expected, Near));
        let Cut(StartSign::There(test), error) = &cut.expected else {
            panic!("{cut:?}")
        };
        assert!(test.ends_with("cmdstat_lpush") && error == "reset by peer");
        let hello = &services[4].1[1].expected;
        assert!(matches!(hello, Client(SuccessSign::Text(text)) if text == "hello, "));
        assert!(line("says what").is_err());
        assert!(line("cut says <- true").is_err());
    }
}
