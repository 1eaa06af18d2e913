//! Commands in virtual machines, from our side.

use std::{
    env,
    ffi::OsString,
    io,
    os::unix::net::UnixStream,
    sync::mpsc::Sender,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{
    cli::Exec,
    output::{Sink, Stream},
    pulse::{Doctor, Pulse},
    qemu::{Machine, Machines},
    watch::{Lost, News, Stopped, Watch},
    wire::{Frame, Job},
};

/// How many times machines are booted that do not come up: on a busy machine now and then one fails
/// for good, and the next boot is as good as any.
const BOOTS: u32 = 3;

/// Variables of ours that a command gets without being asked.
const INHERITED: [&str; 2] = ["RUST_BACKTRACE", "RUST_LOG"];

/// Boots all machines and waits until each has its device and sees the other. Where one does not
/// come up, all are booted again.
pub(crate) fn boot(machines: &Machines<'_>, watch: &Watch) -> Result<Vec<Machine>> {
    let mut attempt = 1;
    loop {
        match boot_once(machines, watch, attempt * machines.accel.boot_limit()) {
            Err(error) if attempt < BOOTS && (error.is::<Lost>() || error.is::<Stopped>()) => {
                eprintln!("lab: {error:#}; booting again");
                attempt += 1;
            }
            outcome => return outcome,
        }
    }
}

fn boot_once(machines: &Machines<'_>, watch: &Watch, limit: Duration) -> Result<Vec<Machine>> {
    let start = Instant::now();
    let mut guests = machines.start()?;
    let mut listeners = Vec::new();
    for (host, guest) in guests.iter_mut().enumerate() {
        let (pulse, doctor) = Doctor::of(host, guest, watch.news.clone());
        if let Some(doctor) = doctor {
            listeners.push(thread::spawn(move || doctor.run()));
        }
        let listener = Listener {
            host,
            pulse,
            port: guest.port.try_clone()?,
            stdout: Sink::new(Stream::Stdout, host, machines.args.hosts()),
            stderr: Sink::new(Stream::Stderr, host, machines.args.hosts()),
            news: watch.news.clone(),
        };
        listeners.push(thread::spawn(move || listener.run()));
    }
    if let Err(error) = with_last_words(&guests, watch.ready(guests.len(), limit)) {
        // Listeners end with their machines, and then nothing more is heard of those.
        drop(guests);
        for listener in listeners {
            let _ = listener.join();
        }
        watch.forget_hosts()?;
        return Err(error);
    }
    let hosts = if guests.len() == 1 { "host" } else { "hosts" };
    eprintln!(
        "lab: {} {hosts} up in {:.1} s",
        guests.len(),
        start.elapsed().as_secs_f32()
    );
    Ok(guests)
}

pub(crate) fn exec(machines: &Machines<'_>, args: &Exec, watch: &Watch) -> Result<u8> {
    let mut guests = boot(machines, watch)?;
    for (host, guest) in guests.iter_mut().enumerate() {
        let mut job = job(machines, host, guest, args.command.clone());
        job.env.extend(args.env.iter().cloned());
        Frame::Run(job).write_to(&mut guest.port)?;
    }
    with_last_words(
        &guests,
        watch.ended(guests.len(), args.timeout(), &args.may_die),
    )
}

/// The job that runs `argv` on `guest` number `host`, in the checkout.
pub(crate) fn job(
    machines: &Machines<'_>,
    host: usize,
    guest: &Machine,
    argv: Vec<OsString>,
) -> Job {
    const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    // The folder has the modules of the guest's kernel.
    let mut modprobe = OsString::from("-d \"");
    modprobe.push(&machines.kernel.dir);
    modprobe.push("\"");
    let mut env: Vec<(OsString, OsString)> = vec![
        ("PATH".into(), PATH.into()),
        ("MODPROBE_OPTIONS".into(), modprobe),
        ("HOME".into(), "/tmp".into()),
        ("LANG".into(), "C.UTF-8".into()),
    ];
    let inherited = INHERITED.iter();
    env.extend(inherited.filter_map(|name| Some((name.into(), env::var_os(name)?))));
    let place = machines.args.device.place(host, machines.args.hosts());
    env.extend(place.variables(machines.lab, &guest.results));
    Job {
        dir: machines.lab.checkout.clone().into(),
        env,
        argv,
    }
}

/// Prints the last output of a host that was lost or stopped.
pub(crate) fn with_last_words<T>(guests: &[Machine], outcome: Result<T>) -> Result<T> {
    outcome.inspect_err(|error| {
        if let Some(lost) = error.downcast_ref::<Lost>() {
            eprintln!("{}", guests[lost.host].last_words());
        }
        if let Some(stopped) = error.downcast_ref::<Stopped>() {
            let guest = &guests[stopped.host];
            eprintln!("{}\n{}", guest.last_words(), stopped.monitor);
            match guest.keep(&stopped.monitor) {
                Ok(kept) => eprintln!("lab: kept in {}", kept.display()),
                Err(error) => eprintln!("lab: cannot keep this: {error:#}"),
            }
        }
    })
}

/// Turns what a guest sends into output and news.
struct Listener {
    host: usize,
    port: UnixStream,
    stdout: Sink,
    stderr: Sink,
    news: Sender<News>,
    pulse: Pulse,
}

impl Listener {
    fn run(mut self) {
        let host = self.host;
        loop {
            let frame = Frame::read_from(&mut self.port);
            // Until the next frame is read it is this side that does not go on.
            let _busy = self.pulse.beat();
            let news = match frame {
                Ok(Frame::Stdout(bytes)) => unheard(self.stdout.write(&bytes)),
                Ok(Frame::Stderr(bytes)) => unheard(self.stderr.write(&bytes)),
                Ok(Frame::Exit(status)) => {
                    let finished = self.stdout.finish().and_then(|()| self.stderr.finish());
                    unheard(finished).or(Some(News::Ended { host, status }))
                }
                Ok(Frame::Ready) => Some(News::Ready { host }),
                Ok(Frame::Beat) => None,
                Ok(Frame::Failed(why)) => Some(News::Lost { host, why }),
                Ok(Frame::Run(_)) => Some(News::Lost {
                    host,
                    why: "sends what only we may".into(),
                }),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Some(News::Lost {
                    host,
                    why: "the machine stopped".into(),
                }),
                Err(error) => Some(News::Lost {
                    host,
                    why: error.to_string(),
                }),
            };
            let last = matches!(news, Some(News::Lost { .. } | News::Unheard));
            // Sending fails when the main thread has gone, and with it the need.
            if last | news.is_some_and(|news| self.news.send(news).is_err()) {
                return;
            }
        }
    }
}

fn unheard(written: io::Result<()>) -> Option<News> {
    written.err().map(|_| News::Unheard)
}
