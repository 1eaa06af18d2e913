//! Tests the command `rdmsg` between two hosts. Host `b` runs the test: it starts `rdmsg serve` on
//! host `a`, and runs commands on both hosts.

use std::time::{Duration, Instant};

use serde_json::Value;
use toolbox::{
    DOCTOR, Deadline, DeviceTest, Diagnosis, Finding, Shell, TIME_LIMIT,
    agent::{self, Host},
    connect, example,
};

/// Runs `test` on host `b`. Host `a` runs an agent that executes the commands that host `b` sends.
fn conducted(test: impl FnOnce(&DeviceTest, &mut Host, &mut Shell)) {
    let lab = DeviceTest::start();
    match &*lab.host {
        "a" => agent::serve().unwrap(),
        "b" => {
            let mut there = Host::connect(lab.peer).unwrap();
            test(&lab, &mut there, &mut Shell::start().unwrap());
            there.quit().unwrap();
        }
        other => panic!("{other} is neither host a nor host b"),
    }
}

/// Starts `rdmsg serve` on the other host, and waits until it listens.
fn serve(there: &mut Host) {
    let argv = [&*example("rdmsg").to_string_lossy(), "serve"].map(str::to_owned);
    there.start(&argv).unwrap();
    let outcome = there.wait_for_text("listening on 0.0.0.0:7471 over RDMA and TCP", TIME_LIMIT);
    assert!(outcome.unwrap());
}

/// Stops `rdmsg serve`, and checks that its exit status is 0. Returns its output.
fn stop_serving(there: &mut Host) -> String {
    there.signal("TERM").unwrap();
    let ended = there.finish(TIME_LIMIT).unwrap();
    assert_eq!(ended.status, Some(0), "{}", ended.output);
    ended.output
}

/// Runs the repair commands of a finding on the affected host.
fn run_commands(finding: &Finding, there: &mut Host, here: &mut Shell) {
    assert!(
        !finding.commands.is_empty(),
        "{finding:?} contains no command"
    );
    for line in &finding.commands {
        if finding.is_of_peer {
            there.shell(line).unwrap();
        } else {
            here.run(line).unwrap();
        }
    }
}

/// Runs the doctor and returns its diagnosis. The doctor's information about the peer can be some
/// seconds old. If `of_peer` is set, this function therefore runs the doctor repeatedly for up to
/// 30 s, until `found` returns true.
fn diagnose_until(
    here: &mut Shell,
    doctor: &str,
    of_peer: bool,
    found: impl Fn(&Diagnosis) -> bool,
) -> Diagnosis {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let diagnosis = Diagnosis::typed(here, doctor).unwrap();
        if found(&diagnosis) || !of_peer || Instant::now() > deadline {
            return diagnosis;
        }
    }
}

/// Runs a command. Returns its exit status and the JSON that it has printed.
fn json(here: &mut Shell, line: &str) -> (u8, Value) {
    let (status, printed) = here.type_line(line).unwrap();
    let value = serde_json::from_str(&printed);
    (
        status,
        value.unwrap_or_else(|error| panic!("{line}: {error}: {printed}")),
    )
}

#[test]
fn the_doctor_goes_to_the_other_host_step_by_step() {
    conducted(|lab, there, here| {
        let doctor = format!("{DOCTOR} {}", lab.peer);
        let wrong = Diagnosis::typed(here, &doctor).unwrap();
        let finding = wrong.only_error("peer");
        assert!(finding.is_of_peer);
        assert_eq!(finding.commands, ["rdmsg serve"]);
        serve(there);
        let fine = Diagnosis::typed(here, &doctor).unwrap();
        assert_eq!(fine.status, 0, "{fine:#?}");
        for subject in ["route", "peer", "both MTUs", "connection", "messages"] {
            assert_eq!(fine.states(subject), ["ok"], "{subject}: {fine:#?}");
        }
        let said = stop_serving(there);
        assert!(
            said.contains("over TCP: examination") && said.contains("over RDMA: echo"),
            "{said}"
        );
    });
}

#[test]
fn the_doctor_finds_mtus_that_differ_on_either_side() {
    conducted(|lab, there, here| {
        serve(there);
        let doctor = format!("{DOCTOR} {}", lab.peer);
        for at_peer in [false, true] {
            let line = "ip link set eth0 mtu 1500";
            if at_peer {
                there.shell(line).unwrap();
            } else {
                here.run(line).unwrap();
            }
            let wrong = Diagnosis::typed(here, &doctor).unwrap();
            assert_eq!(wrong.status, 4, "{wrong:#?}");
            let errors = wrong.errors();
            let finding = errors.iter().find(|error| error.subject == "both MTUs");
            let finding = finding.unwrap_or_else(|| panic!("{wrong:#?}"));
            assert_eq!(finding.is_of_peer, at_peer, "{finding:?}");
            run_commands(finding, there, here);
            let fine = Diagnosis::typed(here, &doctor).unwrap();
            assert_eq!(fine.status, 0, "{fine:#?}");
        }
        stop_serving(there);
    });
}

#[test]
fn doctor_finds_path_with_smaller_mtu() {
    conducted(|lab, there, here| {
        serve(there);
        let doctor = format!("{DOCTOR} {}", lab.peer);
        // When a packet has reached a hop with a smaller MTU, the kernel caches the smaller MTU for
        // ten minutes. This route has the same effect as an entry in that cache.
        let route = format!("{}/32 dev eth0", lab.peer);
        here.run(&format!("ip route add {route} mtu 1500")).unwrap();
        let wrong = Diagnosis::typed(here, &doctor).unwrap();
        let errors = wrong.errors();
        let subjects: Vec<_> = errors.iter().map(|it| &*it.subject).collect();
        assert_eq!(subjects, ["path MTU"], "{wrong:#?}");
        assert!(errors[0].commands[0].ends_with("ip route flush cache"));
        run_commands(errors[0], there, here);
        here.run(&format!("ip route del {route}")).unwrap();
        let fine = Diagnosis::typed(here, &doctor).unwrap();
        assert_eq!(fine.status, 0, "{fine:#?}");
        stop_serving(there);
    });
}

#[test]
fn the_doctor_finds_the_firewall_on_either_side() {
    conducted(|lab, there, here| {
        serve(there);
        let doctor = format!("rdmsg doctor --json --timeout 20 {}", lab.peer);
        for at_peer in [false, true] {
            let drop = "nft add table inet wrong; \
                 nft add chain inet wrong pass '{ type filter hook input priority 0; }'; \
                 nft add rule inet wrong pass udp dport 4791 drop";
            if at_peer {
                there.shell(drop).unwrap();
            } else {
                here.run(drop).unwrap();
            }
            let wrong = diagnose_until(here, &doctor, at_peer, |it| {
                it.errors().iter().any(|error| error.subject == "firewall")
            });
            let errors = wrong.errors();
            let subjects: Vec<_> = errors
                .iter()
                .map(|it| (&*it.subject, it.is_of_peer))
                .collect();
            assert_eq!(
                subjects,
                [("firewall", at_peer), ("connection", false)],
                "{wrong:#?}"
            );
            run_commands(errors[0], there, here);
            let fine = diagnose_until(here, &doctor, at_peer, |it| it.status == 0);
            assert_eq!(fine.status, 0, "{fine:#?}");
            let undo = "nft delete table inet wrong";
            if at_peer {
                there.shell(undo).unwrap();
            } else {
                here.run(undo).unwrap();
            }
        }
        stop_serving(there);
    });
}

#[test]
fn ping_counts_what_comes_back_over_either_transport() {
    conducted(|lab, there, here| {
        serve(there);
        for (transport, name) in [("auto", "RDMA"), ("rdma", "RDMA"), ("tcp", "TCP")] {
            let line = format!(
                "rdmsg ping {} -c 20 -i 0 -s 100K --json --timeout 60 --transport {transport}",
                lab.peer
            );
            let (status, printed) = json(here, &line);
            assert_eq!(status, 0, "{printed}");
            assert_eq!(printed["transport"], name);
            assert_eq!(
                (&printed["sent"], &printed["came_back"]),
                (&20.into(), &20.into())
            );
            assert_eq!(printed["size"], 102_400);
            let times = &printed["round_trip_us"];
            let order = ["least", "median", "p99", "p999", "most"];
            let values = order.map(|name| times[name].as_f64().unwrap());
            assert!(values[0] > 0.0 && values.is_sorted(), "{times}");
            let histogram = printed["histogram"].as_array().unwrap();
            let counts = histogram
                .iter()
                .map(|bucket| bucket["count"].as_u64().unwrap());
            assert_eq!(counts.sum::<u64>(), 20);
        }
        let said = stop_serving(there);
        assert!(
            said.contains("over TCP: echo, closed by the peer; received 21 messages"),
            "{said}"
        );
    });
}

#[test]
fn ping_reports_loss_and_continues_on_next_connection() {
    conducted(|lab, there, here| {
        serve(there);
        let file = "/tmp/ping.out";
        let ping = format!("rdmsg ping {} -c 100000 -i 0.01 --timeout 60", lab.peer);
        here.run(&format!("{ping} >{file} 2>&1 & pid=$!")).unwrap();
        let wait = |here: &mut Shell, text: &str| {
            here.run(&format!(
                "until grep -q '{text}' {file}; do sleep 0.1; done"
            ))
            .unwrap()
        };
        wait(here, "connected to 10.8.0.1:7471 over RDMA");
        there.signal("KILL").unwrap();
        there.finish(TIME_LIMIT).unwrap();
        wait(here, "the connection is lost: ");
        wait(here, "cannot connect to ");
        serve(there);
        let twice = format!("until [ $(grep -c 'connected to' {file}) = 2 ]; do sleep 0.1; done");
        here.run(&twice).unwrap();
        let (status, _) = here.type_line("kill -INT $pid; wait $pid").unwrap();
        assert_eq!(status, 1, "the status must report the lost messages");
        let printed = here.run(&format!("tail -n 30 {file}")).unwrap();
        assert!(printed.contains("1 connection lost"), "{printed}");
        stop_serving(there);
    });
}

#[test]
fn bench_measures_rdma_and_tcp_side_by_side() {
    conducted(|lab, there, here| {
        serve(there);
        let line = format!(
            "rdmsg bench {} --seconds 0.05 --timeout 60 --sizes 64,64K --connections 1,3",
            lab.peer
        );
        let (status, printed) = json(here, &format!("{line} --json"));
        assert_eq!(status, 0, "{printed}");
        let points = printed["points"].as_array().unwrap();
        assert_eq!(points.len(), 3 * 2 * 2 * 2);
        for pair in points.chunks(2) {
            assert_eq!(
                (&pair[0]["transport"], &pair[1]["transport"]),
                (&"RDMA".into(), &"TCP".into())
            );
            for point in pair {
                assert!(point["messages"].as_u64().unwrap() > 0, "{point}");
                assert!(point["bytes_per_second"].as_f64().unwrap() > 0.0, "{point}");
                let is_latency = point["test"] == "latency";
                assert_eq!(point["round_trip_us"].is_object(), is_latency, "{point}");
            }
        }
        let text = here.run(&format!("{line} --test latency")).unwrap();
        assert!(
            text.contains("latency: round trip") && text.contains("● RDMA, 1 connection"),
            "{text}"
        );
        stop_serving(there);
        // Now no server is running, so the command fails.
        let (status, _) = here
            .type_line(&format!("rdmsg bench {} --test rate --timeout 5", lab.peer))
            .unwrap();
        assert_eq!(status, 1);
    });
}

#[test]
fn serve_refuses_excessive_and_unknown_requests() {
    conducted(|lab, there, here| {
        let program = example("rdmsg").to_string_lossy().into_owned();
        let argv = [&*program, "serve", "--max-connections", "1"].map(str::to_owned);
        there.start(&argv).unwrap();
        assert!(there.wait_for_text("listening on", TIME_LIMIT).unwrap());
        let client = format!("{program} ping {} -i 0.05 --timeout 60", lab.peer);
        here.run(&format!("{client} >/tmp/one 2>&1 & pid=$!"))
            .unwrap();
        here.run("until grep -q 'connected to' /tmp/one; do sleep 0.1; done")
            .unwrap();
        let (status, _) = here
            .type_line(&format!("rdmsg ping {} -c1", lab.peer))
            .unwrap();
        assert_eq!(status, 1, "a second connection must be refused");
        assert!(
            there
                .wait_for_text("--max-connections", TIME_LIMIT)
                .unwrap()
        );
        let (status, _) = here.type_line("kill -INT $pid; wait $pid").unwrap();
        assert_eq!(status, 0);
        // If an rdmsg client speaks another application protocol, the server replies with an
        // explanation.
        let reply = loop {
            let endpoint = connect(lab.peer_at(7471)).unwrap();
            endpoint.send(b"hello").unwrap();
            match endpoint.recv_timeout(TIME_LIMIT) {
                Ok(message) => break message.into_vec(),
                // The server is still closing the previous connection, so connect again.
                Err(rdmsg::Error::Disconnected(rdmsg::CloseReason::PeerAborted(1))) => {}
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(reply, b"-this is `rdmsg serve`");
        stop_serving(there);
    });
}

#[test]
fn top_shows_traffic_of_other_programs() {
    conducted(|lab, there, here| {
        let program = example("rdmsg").to_string_lossy().into_owned();
        let argv = [&*program, "serve", "--statistics"].map(str::to_owned);
        there.start(&argv).unwrap();
        assert!(there.wait_for_text("listening on", TIME_LIMIT).unwrap());
        let top = format!("{program} top --once --json --interval 1");
        let read = |there: &mut Host| -> Value {
            let (_, printed) = there.shell(&top).unwrap();
            serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
        };
        let none = read(there);
        assert_eq!(none["processes"], 1);
        assert_eq!(none["connections"], serde_json::json!([]));

        for transport in ["rdma", "tcp"] {
            let ping = format!(
                "rdmsg ping {} -s 1000 -i 0.01 --timeout 60 --transport {transport}",
                lab.peer
            );
            here.run(&format!("{ping} >/tmp/{transport} 2>&1 & {transport}=$!"))
                .unwrap();
            here.run(&format!(
                "until grep -q 'connected to' /tmp/{transport}; do sleep 0.1; done"
            ))
            .unwrap();
        }
        let mut deadline = Deadline::after(TIME_LIMIT);
        let busy = loop {
            let busy = read(there);
            let rows = busy["connections"].as_array().unwrap();
            let is_active = |row: &Value| row["messages_per_second"].as_f64() > Some(0.0);
            if rows.len() == 2 && rows.iter().all(is_active) {
                break busy;
            }
            assert!(!deadline.is_over(), "{busy}");
        };
        let rows = busy["connections"].as_array().unwrap();
        let mut transports: Vec<_> = rows.iter().map(|row| row["transport"].as_str()).collect();
        transports.sort_unstable();
        assert_eq!(transports, [Some("RDMA"), Some("TCP")], "{busy}");
        for row in rows {
            assert_eq!(row["command"], "rdmsg");
            let peer = row["peer"].as_str().unwrap();
            assert!(peer.starts_with(&format!("{}:", lab.addr)), "{peer}");
            let number = |name: &str| row[name].as_f64().unwrap();
            // `rdmsg serve` echoes all messages, so it has both sent and received bytes.
            assert!(number("sent_bytes_per_second") > 0.0, "{row}");
            assert!(number("received_bytes") >= 1000.0, "{row}");
        }
        let (_, text) = there.shell(&format!("{program} top --once")).unwrap();
        assert!(text.starts_with("2 connections of 1 process: "), "{text}");

        for transport in ["rdma", "tcp"] {
            here.run(&format!("kill -INT ${transport}; wait ${transport}"))
                .unwrap();
        }
        let after = loop {
            let after = read(there);
            if after["connections"].as_array().unwrap().is_empty() {
                break after;
            }
        };
        assert_eq!(after["processes"], 1);
        stop_serving(there);
        let end = read(there);
        assert_eq!(
            end["processes"], 0,
            "the server must remove its socket when it exits"
        );
    });
}
