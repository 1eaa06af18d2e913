use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rdmsg::{CloseReason, Config, Connector, Endpoint, Error, TransportChoice};

use super::{
    examination::{Examination, Link},
    exchange::check_reply,
    finding::{Finding, Host, State, as_root, counted},
    hardware::Hardware,
    limits,
    options::Checked,
    route::{FORGET_PATHS, Route},
};
use crate::service::{self, Request, Unserved};

/// The sizes in bytes of the messages that are sent to the peer. Over RoCE and InfiniBand, a
/// message of at least 4096 bytes needs at least one packet of the maximum size. The peer reads the
/// longest message from this host's memory.
const SIZES: [usize; 4] = [64, 4096, 16_000, 300_000];

/// The number of messages of each size.
const COUNT: u32 = 4;

/// The maximum length of a text from the peer, in characters. Longer texts are truncated.
const LONGEST_TEXT: usize = 500;

/// The maximum length of a reply from the peer, in bytes.
const LONGEST_ANSWER: u64 = 1 << 20;

/// The maximum number of the peer's findings in the report.
const MAX_FINDINGS: usize = 40;

/// The maximum number of the peer's devices in the report.
const MAX_DEVICES: usize = 16;

/// Another host, and the route to it.
#[derive(Debug)]
pub(super) struct Peer {
    address: SocketAddr,
    /// The route to the host, or the reason why there is no route.
    route: Result<Route, String>,
}

/// The result of examining the path to a peer.
#[derive(Debug)]
pub(crate) struct PeerExamined {
    pub(super) address: SocketAddr,
    /// The description of the peer, from its own examination.
    pub(crate) about: Option<PeerDescription>,
    pub(crate) findings: Vec<Finding>,
}

/// The description of a host, from its own examination.
#[derive(Debug)]
pub(crate) struct PeerDescription {
    /// The version of the `rdmsg serve` that runs on the host.
    pub(crate) version: String,
    pub(crate) host: String,
    pub(crate) kernel: String,
    pub(crate) hardware: Vec<Hardware>,
}

impl PeerDescription {
    fn of(there: &Examination) -> Self {
        let hardware = there.hardware.iter().take(MAX_DEVICES);
        Self {
            version: plain(&there.version),
            host: plain(&there.host),
            kernel: plain(&there.kernel),
            hardware: hardware.map(|it| it.with_texts(plain)).collect(),
        }
    }
}

impl Peer {
    /// Resolves the peer's name, and determines the route to the peer.
    pub(super) fn find(name: &str) -> Result<Self> {
        let address = service::addresses(name)?;
        let address = *address.first().context("the name has no address")?;
        let route = Route::to(address.ip()).map_err(|error| error.to_string());
        Ok(Self { address, route })
    }

    /// Returns the local address of the route to the peer.
    pub(super) fn local(&self) -> Option<IpAddr> {
        self.route.as_ref().ok().map(|route| route.local)
    }

    /// Examines the path to the peer step by step. If a step fails, skips the steps that depend on
    /// it.
    pub(super) fn examine(
        self,
        transport: Checked,
        here: &Examination,
        timeout: Duration,
    ) -> PeerExamined {
        match transport {
            Checked::Rdma => self.examine_rdma(here, timeout),
            Checked::Tcp => self.examine_tcp(timeout),
        }
    }

    fn examine_tcp(self, timeout: Duration) -> PeerExamined {
        let mut findings = Vec::new();
        findings.push(match &self.route {
            Ok(route) => Finding::ok("route", format!("from {}", route.local)),
            Err(error) => self.judge_no_route(error),
        });
        let (there, is_refused) = self.ask(Checked::Tcp, None, timeout, &mut findings);
        if self.route.is_ok() && !is_refused {
            self.exchange(None, there.is_some(), timeout, &mut findings);
        }
        PeerExamined {
            address: self.address,
            about: there.as_ref().map(PeerDescription::of),
            findings,
        }
    }

    fn examine_rdma(self, here: &Examination, timeout: Duration) -> PeerExamined {
        let mut findings = Vec::new();
        let link = self.judge_route(here, &mut findings);
        let (there, is_refused) = self.ask(Checked::Rdma, link, timeout, &mut findings);
        if let (Some(link), Some(there)) = (link, &there) {
            findings.extend(self.judge_mtu(link, there));
        }
        // Try the exchange even if the peer did not reply over TCP, because RDMA may work when TCP
        // does not.
        if let Some(link) = link.filter(|_| !is_refused) {
            self.exchange(Some(link), there.is_some(), timeout, &mut findings);
        }
        PeerExamined {
            address: self.address,
            about: there.as_ref().map(PeerDescription::of),
            findings,
        }
    }

    fn judge_no_route(&self, error: &str) -> Finding {
        let to = self.address.ip();
        Finding::error("route", format!("there is no route to {to}: {error}"))
            .because("this host cannot send to the peer")
            .hint("`ip route` shows the routes of this host")
    }

    fn judge_route<'a>(
        &self,
        here: &'a Examination,
        findings: &mut Vec<Finding>,
    ) -> Option<&'a Link> {
        let to = self.address.ip();
        let route = match &self.route {
            Ok(route) => route,
            Err(error) => {
                findings.push(self.judge_no_route(error));
                return None;
            }
        };
        let local = route.local;
        if let Some(link) = here.link_of(local) {
            let Link {
                device, interface, ..
            } = link;
            let what = format!("from {local} on {interface}, over the RDMA device {device}");
            findings.push(Finding::ok("route", what));
            findings.extend(route.judge_mtu(to, link));
            return Some(link);
        }
        let what = format!("the route to {to} begins at {local}, which no RDMA device has");
        let finding = Finding::error("route", what)
            .because("RDMA uses the interface that the route names, as TCP does");
        let usable: Vec<String> = here
            .links
            .iter()
            .flat_map(|link| &link.addresses)
            .map(ToString::to_string)
            .collect();
        findings.push(if usable.is_empty() {
            finding.hint("see the findings about this host")
        } else {
            finding.hint(format!(
                "use an address of the peer in the network of one of {}",
                usable.join(", ")
            ))
        });
        None
    }

    /// Requests the peer's examination of itself. Copies the peer's problems that concern the
    /// checked transport into `findings`. Returns the examination, or `None` if no readable
    /// examination arrived. The second returned value is true if the peer refused the connection,
    /// which means that no server is running.
    ///
    /// Except for iWARP, the request uses TCP, which may work when RDMA does not. For iWARP, the
    /// request uses RDMA: an iWARP port is a TCP port, and an iWARP listener does not accept plain
    /// TCP connections.
    fn ask(
        &self,
        checked: Checked,
        link: Option<&Link>,
        timeout: Duration,
        findings: &mut Vec<Finding>,
    ) -> (Option<Examination>, bool) {
        let transport = match link {
            Some(Link { is_iwarp: true, .. }) => TransportChoice::Rdma,
            _ => TransportChoice::Tcp,
        };
        let connected = self.connect(transport, timeout);
        let asked = connected.map_err(Unserved::from).and_then(|endpoint| {
            let text = service::ask(&endpoint, Request::Examine, timeout)?;
            let _ = endpoint.close();
            Ok(text)
        });
        let text = match asked {
            Ok(text) => text,
            Err(error) => {
                findings.push(self.judge_no_service(&error));
                return (None, is_refusal(&error));
            }
        };
        let there: Examination = match serde_json::from_slice(&text) {
            Ok(there) => there,
            Err(error) => {
                let what = format!("cannot read the answer of {}: {error}", self.address);
                let why = "the peer runs another version of rdmsg, or another program";
                findings.push(Finding::warning("peer", what).because(why));
                return (None, false);
            }
        };
        let concerns = |it: &&Finding| checked == Checked::Rdma || it.subject == limits::OF_FILES;
        let checks = there.findings.iter().filter(concerns);
        let bad = bad_of_peer(checks.clone());
        let what = format!(
            "rdmsg {} runs on the peer, which reports {} in {}",
            plain(&there.version),
            counted(bad.len(), "problem"),
            counted(checks.count(), "check")
        );
        findings.push(Finding::ok("peer", what));
        findings.extend(bad);
        (Some(there), false)
    }

    fn judge_no_service(&self, error: &Unserved) -> Finding {
        let (ip, port) = (self.address.ip(), self.address.port());
        let what = match error {
            Unserved::OtherProgram => {
                format!(
                    "a program other than rdmsg serve listens at {}",
                    self.address
                )
            }
            Unserved::Failed(_) | Unserved::Refused(_) => {
                format!("rdmsg serve does not answer: {error}")
            }
        };
        let finding = Finding::error("peer", what)
            .because("only `rdmsg serve` on the peer can examine the peer")
            .at(Host::Peer);
        if matches!(error, Unserved::Failed(Error::TimedOut)) {
            return finding.hint(format!(
                "a connection to TCP port {port} is established, so no firewall drops the port: the \
                 peer is slow, another program has the port, or long packets are lost"
            ));
        }
        if is_of_established(error) {
            return finding.hint(format!(
                "a connection to TCP port {port} is established, so the network works: run \
                 `rdmsg serve` on the peer with a free port, and add this port to the address here"
            ));
        }
        let serve = match port {
            service::PORT => "rdmsg serve".to_owned(),
            port => format!("rdmsg serve 0.0.0.0:{port}"),
        };
        if is_refusal(error) {
            return finding.command(serve);
        }
        finding.command(serve).hint(format!(
            "if it runs: `ping -c1 {ip}` shows whether this host reaches the peer, and a \
             firewall must let TCP port {port} pass"
        ))
    }

    fn judge_mtu(&self, link: &Link, there: &Examination) -> Option<Finding> {
        let other = there.link_of(self.address.ip())?;
        let (ours, theirs) = (link.mtu, other.mtu);
        if ours == theirs {
            let what = format!("{ours} on both sides");
            return Some(Finding::ok("both MTUs", what));
        }
        let what = format!(
            "{ours} here ({}), and {theirs} at the peer ({})",
            link.interface,
            plain(&other.interface)
        );
        let finding = if link.is_iwarp || link.rdma_mtu == other.rdma_mtu {
            Finding::note("both MTUs", what)
        } else {
            Finding::error("both MTUs", what)
        };
        let finding = finding.because(
            "the side with the larger MTU sends packets that the other side may drop: short \
             messages arrive, but long ones do not",
        );
        // The kernel caches a smaller path MTU for several minutes. Therefore flush the cache.
        let raise_mtu = |interface: &str, mtu: u64| {
            let set = format!("ip link set {interface} mtu {mtu}");
            [&set, FORGET_PATHS].map(as_root)
        };
        Some(if ours < theirs {
            finding.commands(raise_mtu(&link.interface, theirs))
        } else if is_interface(&other.interface) {
            finding
                .commands(raise_mtu(&other.interface, ours))
                .at(Host::Peer)
        } else {
            finding.at(Host::Peer)
        })
    }

    /// Sends messages to the peer, and checks that the peer returns them. The messages use RDMA if
    /// `link` is `Some`, and TCP otherwise. `serves` is true if `rdmsg serve` on the peer has sent
    /// its examination.
    fn exchange(
        &self,
        link: Option<&Link>,
        serves: bool,
        timeout: Duration,
        findings: &mut Vec<Finding>,
    ) {
        let checked = link.map_or(Checked::Tcp, |_| Checked::Rdma);
        let name = checked.name();
        let endpoint = match self.connect(checked.into(), timeout) {
            Ok(endpoint) => endpoint,
            Err(error) => {
                findings.push(self.judge_no_connection(checked, &error, serves, findings));
                return;
            }
        };
        let what = format!(
            "a connection to {} over {name} is established",
            self.address
        );
        findings.push(Finding::ok("connection", what));
        // If a packet is longer than the interface's MTU, a software device retries the packet
        // forever, which keeps a processor busy. Therefore send no long messages if a finding
        // reports an MTU problem.
        let of_mtu = |it: &&Finding| ["path MTU", "both MTUs"].contains(&&*it.subject);
        let mut errors = findings.iter().filter(|it| it.state == State::Error);
        let mtu_problem = errors.find(of_mtu).map(|it| it.subject.clone());
        let sizes = if mtu_problem.is_some() {
            &SIZES[..1]
        } else {
            &SIZES
        };
        let echoed = service::ask(&endpoint, Request::Echo, timeout).and_then(|_| {
            let mut arrived = None;
            let mut times = Vec::new();
            for &size in sizes {
                match echo(&endpoint, size, timeout) {
                    Ok(time) => times.push((size, time)),
                    Err(Error::TimedOut | Error::Disconnected(_)) if arrived.is_some() => {
                        return Ok((times, Some(size)));
                    }
                    Err(error) => return Err(error.into()),
                }
                arrived = Some(size);
            }
            Ok((times, None))
        });
        match echoed {
            Ok((times, None)) => {
                let _ = endpoint.close();
                let list = times
                    .iter()
                    .map(|(size, time)| format!("{size} B in {time:.1?}"));
                let list: Vec<String> = list.collect();
                let what = format!("messages came back: {}", list.join(", "));
                let finding = Finding::ok("messages", what);
                findings.push(match mtu_problem {
                    None => finding,
                    Some(mtu_problem) => finding.hint(format!(
                        "longer messages were not sent: see the finding {mtu_problem}"
                    )),
                });
            }
            Ok((times, Some(size))) => {
                endpoint.abort(0);
                let arrived = times.last().map_or(0, |(size, _)| *size);
                let what = format!(
                    "messages of {arrived} bytes come back, but not those of {size} bytes: long \
                     packets are lost"
                );
                let finding = Finding::error("messages", what)
                    .because("a switch or host on the way drops packets of this MTU");
                let ip = self.address.ip();
                findings.push(match link {
                    Some(Link { interface, mtu, .. }) => finding
                        .command(as_root(&format!("ip link set {interface} mtu 1500")))
                        .hint(format!(
                            "on both hosts; or configure the switches for packets of {mtu} bytes, \
                             which `ping -M do -s {} {ip}` tests",
                            mtu.saturating_sub(28),
                        )),
                    None => finding.hint(format!(
                        "`ping -M do -s 1472 {ip}` tests packets of 1500 bytes; set a smaller MTU \
                         on both hosts, or let ICMP packets pass, which report the path's MTU"
                    )),
                });
            }
            Err(Unserved::OtherProgram) if !serves => {
                let what = format!("no messages were sent over {name}: see the finding peer");
                findings.push(Finding::note("messages", what));
            }
            Err(error) => {
                endpoint.abort(0);
                let what = format!("no message comes back over {name}: {error}");
                let finding = Finding::error("messages", what);
                findings.push(if serves {
                    self.of_another_program(finding)
                } else {
                    finding.because("the connection was established, but carries no messages")
                });
            }
        }
    }

    fn judge_no_connection(
        &self,
        checked: Checked,
        error: &Error,
        serves: bool,
        before: &[Finding],
    ) -> Finding {
        let what = format!(
            "cannot establish a connection over {}: {error}",
            checked.name()
        );
        let finding = Finding::error("connection", what);
        let blamed = |host: Host| {
            let bad = |it: &&Finding| it.host == host && it.state == State::Error;
            before.iter().find(bad).map(|it| it.subject.clone())
        };
        match blamed(Host::Peer) {
            Some(subject) => finding.hint(format!("the peer has a problem: see {subject} above")),
            None if serves && is_of_another_program(error) => self.of_another_program(finding),
            None if serves && checked == Checked::Rdma => {
                finding.because("TCP works on the same route").hint(
                    "both hosts seem to be in order: if the peer does not answer, something \
                     between them (a switch, a cloud's security group, iptables-legacy) drops UDP \
                     port 4791",
                )
            }
            None => finding,
        }
    }

    /// Adds a possible reason to a finding: different programs use the port over RDMA and over TCP.
    fn of_another_program(&self, finding: Finding) -> Finding {
        let port = self.address.port();
        finding
            .because("one program may have the port over RDMA, and another program over TCP")
            .hint(format!(
                "`rdma resource show cm_id lport {port}` and `ss -ltnp sport = :{port}` show the \
                 programs on the peer: end one of them, or let it use another port"
            ))
            .at(Host::Peer)
    }

    fn connect(&self, transport: TransportChoice, timeout: Duration) -> Result<Endpoint, Error> {
        let mut config = Config::default();
        config.transport = transport;
        config.connect_timeout = timeout;
        config.max_message = LONGEST_ANSWER;
        Connector::new().config(&config).connect(self.address)
    }
}

/// Returns true if the error suggests that the program at the peer is not a compatible rdmsg
/// listener.
fn is_of_another_program(error: &Error) -> bool {
    matches!(
        error,
        Error::Connect {
            reason: CloseReason::NotRdmsg
                | CloseReason::PeerIsRsocket
                | CloseReason::PeerIncompatible(_)
                | CloseReason::RejectedWithoutCause,
            ..
        }
    )
}

/// Returns true if the error means that the host is up but no program listens on the port.
fn is_refusal(error: &Unserved) -> bool {
    matches!(
        error,
        Unserved::Failed(Error::Connect {
            reason: CloseReason::Refused,
            ..
        })
    )
}

/// Returns true if the error occurred after the connection was established. The port then probably
/// belongs to a program other than `rdmsg serve`.
fn is_of_established(error: &Unserved) -> bool {
    matches!(
        error,
        Unserved::OtherProgram | Unserved::Failed(Error::Disconnected(_))
    )
}

/// Sends messages of this size to the peer, one at a time. Returns the median round-trip time.
fn echo(endpoint: &Endpoint, size: usize, timeout: Duration) -> Result<Duration, Error> {
    let message = vec![0x5a; size];
    let mut times = Vec::new();
    for _ in 0..COUNT {
        let start = Instant::now();
        endpoint.send_timeout(&message, timeout)?;
        let answer = endpoint.recv_timeout(timeout)?;
        times.push(start.elapsed());
        check_reply(&answer, &message)?;
    }
    times.sort();
    Ok(times[times.len() / 2])
}

/// Returns the peer's findings that are warnings or errors, at most the first `MAX_FINDINGS`.
fn bad_of_peer<'a>(findings: impl Iterator<Item = &'a Finding>) -> Vec<Finding> {
    let bad = findings.filter(|it| it.state > State::Note);
    bad.take(MAX_FINDINGS).map(of_peer).collect()
}

/// Returns a copy of the peer's finding that is safe to display. Replaces control characters,
/// because they could control the terminal, and truncates long texts and lists. Sets the field
/// `host` to `Host::Peer`.
fn of_peer(finding: &Finding) -> Finding {
    let all = |texts: &[String]| texts.iter().take(5).map(|text| plain(text)).collect();
    Finding {
        subject: plain(&finding.subject),
        state: finding.state,
        host: Host::Peer,
        what: plain(&finding.what),
        why: finding.why.as_deref().map(plain),
        commands: all(&finding.commands),
        keep: all(&finding.keep),
        hint: finding.hint.as_deref().map(plain),
    }
}

/// Returns whether `name` is a valid interface name that is safe in a shell command.
fn is_interface(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !name.starts_with('-') && (1..16).contains(&name.len()) && name.chars().all(is_plain)
}

/// Replaces control characters in a text from another host, and truncates the text to
/// `LONGEST_TEXT` characters.
fn plain(text: &str) -> String {
    let shown = text.chars().map(|c| if c.is_control() { '?' } else { c });
    shown.take(LONGEST_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_peer_cannot_control_the_terminal() {
        let hostile = Finding::error("x\x1b[2J", "\r\n\u{9b}31m".repeat(1000))
            .command("rm\x07")
            .at(Host::Here);
        let shown = of_peer(&hostile);
        assert_eq!(
            shown.host,
            Host::Peer,
            "the peer must not be able to choose the host"
        );
        assert_eq!(shown.subject, "x?[2J");
        assert_eq!(shown.what.chars().count(), LONGEST_TEXT);
        assert!(!shown.what.chars().any(char::is_control));
        assert_eq!(shown.commands, ["rm?"]);
    }

    #[test]
    fn no_more_findings_are_shown_than_a_page_has() {
        let bad = vec![Finding::warning("x", "y"); MAX_FINDINGS + 1];
        assert_eq!(bad_of_peer(bad.iter()).len(), MAX_FINDINGS);
        let many = [vec![Finding::ok("x", "y"); 100], bad].concat();
        assert_eq!(bad_of_peer(many.iter()).len(), MAX_FINDINGS);
    }

    #[test]
    fn smaller_mtu_is_raised_on_its_host() {
        let link = |mtu| Link {
            device: "rxe0".into(),
            interface: "eth0".into(),
            is_iwarp: false,
            mtu,
            rdma_mtu: if mtu > 4192 { 4096 } else { 1024 },
            addresses: vec!["10.8.0.1".parse().unwrap()],
        };
        let peer = Peer {
            address: "10.8.0.1:7471".parse().unwrap(),
            route: Err(String::new()),
        };
        let judged = |here: u64, there: u64| {
            let mut examination = Examination::of_this_host(None, None);
            examination.links = vec![link(there)];
            peer.judge_mtu(&link(here), &examination).unwrap()
        };
        assert_eq!(judged(4200, 4200).state, State::Ok);
        let here = judged(1500, 4200);
        assert_eq!((here.state, here.host), (State::Error, Host::Here));
        let expected = ["ip link set eth0 mtu 4200", "ip route flush cache"];
        assert_eq!(here.commands, expected.map(as_root));
        let there = judged(4200, 1500);
        assert_eq!((there.state, there.host), (State::Error, Host::Peer));
        assert_eq!(
            judged(9000, 4200).state,
            State::Note,
            "MTUs that allow equal RDMA packets must be a note only"
        );
    }
}
