//! The servers and their clients, read from `plan.txt`.

use anyhow::{Context, Result, bail};

/// A server and its clients.
#[derive(Debug, Default)]
pub(crate) struct Service {
    /// Scripts that start and end a service behind the server, on its host.
    pub(crate) behind: String,
    pub(crate) end: String,
    pub(crate) server: String,
    /// A bridge on the clients' host, if they are not to know of the server.
    pub(crate) near: Option<String>,
    pub(crate) clients: Vec<Client>,
    /// A client under which the network is cut.
    pub(crate) cut: Option<Cut>,
}

/// A client's command line.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) line: String,
    pub(crate) shows: Shows,
}

/// The sign of success.
#[derive(Debug)]
pub(crate) enum Shows {
    /// It printed this.
    Text(String),
    /// It wrote a page.
    Page,
    /// It printed how many of them there were in a second.
    Rate(String),
}

/// A client that does not end by itself, or not soon.
#[derive(Debug)]
pub(crate) struct Cut {
    pub(crate) line: String,
    pub(crate) begun: Begun,
    /// What it says when the network is gone.
    pub(crate) error: String,
}

/// The sign that it is at work.
#[derive(Debug)]
pub(crate) enum Begun {
    /// It prints this.
    Says(String),
    /// This command succeeds on the server's host.
    There(String),
    /// It succeeds on its own.
    Here(String),
}

/// Where clients write a page.
pub(crate) const PAGE_FILE: &str = "/tmp/page";

/// A certificate, on either host.
pub(crate) const CERTIFICATE: &str = "/tmp/services.pem";

pub(crate) fn services() -> Result<Vec<Service>> {
    let lines = include_str!("plan.txt").lines();
    let lines: Vec<_> = lines.filter(|line| !line.starts_with('#')).collect();
    let plan = lines.join("\n").replace("\n ", " ");
    let services = plan.split("\n\n").filter(|text| !text.trim().is_empty());
    services.map(service).collect()
}

impl Service {
    fn ask(&mut self, line: String, shows: Shows) {
        self.clients.push(Client { line, shows });
    }
}

fn service(text: &str) -> Result<Service> {
    let mut service = Service::default();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (expected, line) = line.split_once(" <- ").context(line.to_owned())?;
        let (what, more) = expected.split_once(' ').unwrap_or((expected, ""));
        let (line, more) = (line.to_owned(), more.replace("\\n", "\n"));
        match what {
            "server" => service.server = line,
            "behind" => service.behind = line,
            "end" => service.end = line,
            "near" => service.near = Some(line),
            "cut" => service.cut = Some(cut(line, &more)?),
            "says" => service.ask(line, Shows::Text(more)),
            "page" => service.ask(line, Shows::Page),
            "rate" => service.ask(line, Shows::Rate(more)),
            _ => bail!("{expected:?} is nothing to expect"),
        }
    }
    Ok(service)
}

fn cut(line: String, how: &str) -> Result<Cut> {
    let (begun, error) = how.rsplit_once(" | ").context(how.to_owned())?;
    let (place, text) = begun.split_once(' ').context(how.to_owned())?;
    let text = text.to_owned();
    let begun = match place {
        "says" => Begun::Says(text),
        "there" => Begun::There(text),
        "here" => Begun::Here(text),
        _ => bail!("{place:?} shows nothing"),
    };
    let error = error.to_owned();
    Ok(Cut { line, begun, error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_is_read_whole() {
        let services = services().unwrap();
        assert_eq!(services.len(), 10);
        let sum = |count: fn(&Service) -> usize| services.iter().map(count).sum::<usize>();
        assert_eq!(sum(|service| service.clients.len()), 43);
        assert_eq!(sum(|service| usize::from(service.cut.is_some())), 7);
        let redis = &services[8];
        assert!(redis.behind.ends_with("sleep 0.05; done") && redis.near.is_some());
        let cut = redis.cut.as_ref().unwrap();
        assert_eq!(cut.error, "reset by peer");
        assert!(matches!(&cut.begun, Begun::There(test) if test.ends_with("cmdstat_lpush")));
        assert!(matches!(&services[4].clients[0].shows, Shows::Text(text) if text == "hello, "));
        assert!(service("says what").is_err());
        assert!(service("cut says <- true").is_err());
    }
}
