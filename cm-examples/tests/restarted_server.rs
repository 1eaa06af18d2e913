//! Test of a client that connects again after its server was killed and restarted. The test uses
//! TCP, or RDMA if the environment variable `LAB_ADDR` is set to the address of an RDMA device.

use std::{env, time::Duration};

use toolbox::{Line, Process};

/// The time limit for each wait. It is long enough for a host with emulated processors.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Reads lines until a line starts with `beginning`, and returns the text that follows `beginning`.
fn line(process: &mut Process, beginning: &str) -> String {
    loop {
        match process.line(TIME_LIMIT) {
            Some(Line::Out(line)) => {
                if let Some(rest) = line.strip_prefix(beginning) {
                    return rest.to_owned();
                }
            }
            Some(line) => println!("{line:?}"),
            None => panic!("the program must print a line that starts with {beginning:?}"),
        }
    }
}

fn serve(address: &str) -> (Process, String) {
    let mut server = Process::start(&[env!("CARGO_BIN_EXE_echo_threads"), address]).unwrap();
    let address = line(&mut server, "listening on ");
    (server, address)
}

#[test]
fn each_question_has_its_answer_after_restarts() {
    let host = env::var("LAB_ADDR").unwrap_or_else(|_| "127.0.0.1".into());
    let (mut server, address) = serve(&format!("{host}:0"));
    let program = env!("CARGO_BIN_EXE_echo_persistent");
    let mut client = Process::start(&[program, &address, "-c", "200", "-i", "10"]).unwrap();
    for answers in ["20 answers", "40 answers"] {
        line(&mut client, "connected to ");
        line(&mut client, answers);
        drop(server.kill().unwrap());
        line(&mut client, "lost: ");
        (server, _) = serve(&address);
    }
    line(&mut client, "connected to ");
    line(&mut client, "closed: each question has its answer");
    assert!(client.finish(TIME_LIMIT).unwrap().succeeded());
}
