//! The lab: boots virtual machines with a software RDMA device and runs commands in them.
//!
//! This program runs on this machine and in the guests. On this machine, it prepares a kernel
//! ([`lab`]), starts QEMU ([`qemu`]) and supervises the guests ([`watch`], [`guest`]). In a guest,
//! [`agent`] runs the command. The program on this machine and the agents exchange the frames of
//! [`hosts::wire`].

mod accel;
mod agent;
mod cli;
mod device;
mod guest;
mod host_network;
mod lab;
mod native;
mod output;
mod pulse;
mod qemu;
mod shell;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::{
    accel::Accel,
    cli::{Cli, Command, Exec, MachineArgs},
    host_network::HostNetwork,
    lab::Lab,
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
        stop.map_or(watch::FAILURE, Stop::status)
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
    let accel = match args.counted {
        true => Accel::Counted,
        false => Accel::Tcg,
    };
    guest::exec(&Machines::new(lab, &args.machines, accel)?, args, &watch)
}

fn shell(args: &MachineArgs) -> Result<u8> {
    let watch = Watch::new()?;
    shell::shell(&Machines::new(Lab::find()?, args, Accel::Tcg)?, &watch)
}

fn probe() -> u8 {
    let (kind, why) = match native::offer() {
        Ok(Some(HostNetwork { devices, .. })) => {
            ("native", format!("devices are active: {devices:?}"))
        }
        Ok(None) => (
            "native",
            "there is no device, but rdma_rxe can create one".into(),
        ),
        Err(missing) => ("vm", format!("{missing:#}")),
    };
    println!("{kind}");
    eprintln!("lab: {why}");
    0
}
