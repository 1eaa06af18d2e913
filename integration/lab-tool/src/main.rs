//! The lab: boots virtual machines with a soft-RoCE device and runs commands in them.
//!
//! This program has two halves. On this machine it prepares a kernel ([`lab`]),
//! starts QEMU ([`qemu`]) and watches over it ([`watch`], [`guest`]). In the guest, [`agent`] runs
//! the command. Between them are the frames of [`hosts::wire`].

mod accel;
mod agent;
mod cli;
mod device;
mod guest;
mod lab;
mod listener;
mod native;
mod place;
mod pulse;
mod qemu;
mod shell;
mod watch;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Parser;

use crate::{
    accel::Accel,
    cli::{Cli, Command, Exec, MachineArgs},
    lab::Lab,
    place::{Driver, Place},
    qemu::Machines,
    watch::{Stop, Watch},
};

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Setup(_) => setup(),
        Command::Exec(args) => exec(&args),
        Command::Shell(machines) => shell(&machines),
        Command::Probe => Ok(probe()),
        Command::Agent => agent::main().map(|()| 0),
    };
    let status = result.unwrap_or_else(|error| {
        eprintln!("lab: {error:#}");
        let stop = error.downcast_ref::<Stop>();
        stop.map_or(watch::FAILURE, |stop| stop.status)
    });
    ExitCode::from(status)
}

fn setup() -> Result<u8> {
    let lab = Lab::find()?;
    lab.provide("fetch", &lab.dir().join("kernels"))?;
    let kernel = lab.kernel()?;
    lab.provide("initramfs", &kernel)?;
    eprintln!("lab: ready, with {}", kernel.display());
    Ok(0)
}

fn exec(args: &Exec) -> Result<u8> {
    let lab = Lab::find()?;
    let watch = Watch::new()?;
    if args.native {
        return native::exec(&lab, args, &watch);
    }
    let accel = [Accel::Tcg, Accel::Counted][usize::from(args.counted)];
    with_machines(&lab, &args.machines, accel, |machines| {
        guest::exec(machines, args, &watch)
    })
}

fn shell(args: &MachineArgs) -> Result<u8> {
    let watch = Watch::new()?;
    with_machines(&Lab::find()?, args, Accel::Tcg, |machines| {
        shell::shell(machines, &watch)
    })
}

fn with_machines(
    lab: &Lab,
    args: &MachineArgs,
    accel: Accel,
    run: impl FnOnce(&Machines<'_>) -> Result<u8>,
) -> Result<u8> {
    let drivers = args.device.each();
    ensure!(
        drivers.len() == 1 || args.hosts() == 1,
        "--device both is for one host"
    );
    let kernel = &lab.kernel()?;
    lab.provide("initramfs", kernel)?;
    if drivers.contains(&Driver::Siw) {
        lab.provide("siw", kernel)?;
    }
    run(&Machines {
        lab,
        kernel,
        accel,
        args,
    })
}

fn probe() -> u8 {
    let (place, why) = match native::offer() {
        Ok(Some(Place { devices, .. })) => ("native", format!("devices are active: {devices:?}")),
        Ok(None) => (
            "native",
            "there is no device, but rdma_rxe can make one".into(),
        ),
        Err(missing) => ("vm", format!("{missing:#}")),
    };
    println!("{place}");
    eprintln!("lab: {why}");
    0
}
