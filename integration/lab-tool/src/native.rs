//! Commands on this machine itself, if it has RDMA or can be given it.

use std::{env, fmt, path::Path, process::Command, sync::Mutex};

use anyhow::{Context, Result, anyhow};
use hosts::{Program, wire::Job};
use nix::{
    sys::{
        resource::{RLIM_INFINITY, Resource, setrlimit},
        signal::{Signal, killpg},
    },
    unistd::{Pid, geteuid},
};

use crate::{
    cli::Exec,
    device::{Device, run},
    driver::Driver,
    lab::Lab,
    listener::{COMMAND, Listener},
    place::{HOSTS, Place},
    process::dies_with_us,
    watch::Watch,
};

/// The network device that the lab makes where there is no RDMA device yet, and the one over it.
const NETDEV: &str = "lab0";
const DEVICE: &str = "lab_rxe0";

/// What this machine offers.
#[derive(Debug)]
pub(crate) enum Offer {
    /// A device that is ready for use.
    Device(Place),
    /// A kernel that can make one.
    SoftRoce,
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(place) => write!(
                f,
                "device {} is active, with address {}",
                place.device, place.addr
            ),
            Self::SoftRoce => f.write_str("there is no device, but rdma_rxe can make one"),
        }
    }
}

/// An error says what is missing.
pub(crate) fn offer() -> Result<Offer> {
    if let Some(place) = Device::all().iter().find_map(place_on) {
        return Ok(Offer::Device(place));
    }
    let missing = "there is no active RDMA device with an IPv4 address";
    if !geteuid().is_root() {
        return Err(anyhow!(
            "{missing}, and making one with rdma_rxe takes root"
        ));
    }
    if !Path::new("/sys/module/rdma_rxe").exists() {
        run(Command::new("modprobe").args(["--dry-run", "rdma_rxe"]))
            .with_context(|| format!("{missing}, and rdma_rxe cannot be loaded to make one"))?;
    }
    Ok(Offer::SoftRoce)
}

fn place_on(device: &Device) -> Option<Place> {
    let (v4, v6) = device.addresses();
    let addr = *v4.first().filter(|_| device.is_active())?;
    let addr6 = v6.first().copied();
    Some(Place {
        host: HOSTS[0],
        device: device.name.clone(),
        addr,
        peer: addr,
        addr6,
        peer6: addr6,
        second: None,
    })
}

/// Runs the command once per host, all of them on this machine.
pub(crate) fn exec(lab: &Lab, args: &Exec, watch: &Watch) -> Result<u8> {
    let (place, _made) = match offer().context("--native is not possible here")? {
        Offer::Device(place) => (place, None),
        Offer::SoftRoce => {
            let made = SoftRoce::make(args.machines.mtu)?;
            (made.place.clone(), Some(made))
        }
    };
    // As in a guest, if we may.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let hosts = args.machines.hosts();
    let mut programs = Vec::new();
    for (host, name) in HOSTS.into_iter().enumerate().take(hosts) {
        let results = lab.results(args.machines.results.as_deref(), name)?;
        let place = Place {
            host: name,
            ..place.clone()
        };
        let env = env::vars_os().chain(place.variables(lab, &results));
        let job = Job {
            argv: args.argv(),
            dir: Some(lab.checkout.clone()),
            env: Some(env.chain(args.env.iter().cloned()).collect()),
            told: false,
        };
        let listener = Mutex::new(Listener::new(host, hosts > 1, watch.news.clone()));
        let report = move |frame| {
            let listener = listener
                .lock()
                .map(|mut listener| listener.hear(COMMAND, frame));
            drop(listener);
        };
        programs.push(Program::start(&job, dies_with_us, kill_group, report)?);
    }
    let ended = watch.ended(hosts, args.timeout(), &[]);
    ended.inspect_err(|_| programs.iter().for_each(|program| kill_group(program.id())))
}

/// Ends a command and everything that it started.
fn kill_group(leader: Pid) {
    // Fails when none of them is left.
    let _ = killpg(leader, Signal::SIGKILL);
}

/// A device that the lab made. Dropping it removes it.
#[derive(Debug)]
struct SoftRoce {
    place: Place,
}

impl SoftRoce {
    fn make(mtu: u32) -> Result<Self> {
        run(Command::new("modprobe").args(["-a", "rdma_rxe", "rdma_ucm", "ib_uverbs"]))?;
        // From here on, so that what a failure leaves behind goes away too.
        let made = Self {
            place: Place::new(0, 1, DEVICE),
        };
        Device::create(Driver::Rxe, &made.place, NETDEV, true, mtu)?;
        Ok(made)
    }
}

impl Drop for SoftRoce {
    fn drop(&mut self) {
        // The RDMA device goes with the network device below it.
        if let Err(error) = run(Command::new("ip").args(["link", "del", NETDEV])) {
            eprintln!("lab: cannot remove {NETDEV}: {error:#}");
        }
    }
}
