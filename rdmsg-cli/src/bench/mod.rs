//! `rdmsg bench` measures latency, bandwidth and message rate, and compares RDMA with TCP.
//!
//! ```text
//! options  the command line            plan     the points to measure, in order
//! measure  measures one point          results  all results, also as JSON
//! table    the results as a text table plot     the content of a plot: series, axes
//! chart    a plot in the terminal      report   the two files of --report
//! ```

mod chart;
mod measure;
mod options;
mod plan;
mod plot;
mod report;
mod results;
mod table;

use std::{
    io::{Write, stderr, stdout},
    process::ExitCode,
};

use anyhow::{Context, Result};
use serde::Serialize;

pub(crate) use self::options::Options;
use self::{
    plan::Plan,
    plot::Plot,
    report::Report,
    results::{PointJson, Results},
};
use crate::{
    doctor,
    live::Live,
    process::{Stop, raise_open_files},
    service, terminal,
};

/// The JSON output. Its members are printed in this order.
#[derive(Serialize)]
struct Json<'a> {
    peer: &'a str,
    points: Vec<PointJson<'a>>,
}

/// Measures all points of the plan, and prints the results. If a signal arrives, stops early and
/// prints the results so far.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let stop = Stop::install().context("cannot handle signals")?;
    raise_open_files();
    let peer = service::addresses(&options.peer)?;
    let has_device = doctor::has_device();
    let plan = Plan::new(options, has_device);
    let name = options.report.as_deref();
    let report = name.map(|name| Report::begin(name, options)).transpose()?;
    let mut live = Live::new(!options.json);
    if options.leaves_carriers_open() && !has_device {
        writeln!(
            stderr(),
            "this host has no RDMA device, so only TCP is measured; `rdmsg doctor` shows the cause"
        )?;
    }
    let results = Results::measure(&plan, &peer, options, &mut live, &stop)?;
    live.clear()?;
    if let Some(report) = report {
        let [json, markdown] = report.finish(&results, &plan)?;
        let (json, markdown) = (json.display(), markdown.display());
        writeln!(
            stderr(),
            "the report is in {json} and {markdown}: read it before you send it"
        )?;
    }
    if options.json {
        let json = Json {
            peer: &options.peer,
            points: results.to_json(),
        };
        writeln!(stdout(), "{}", serde_json::to_string_pretty(&json)?)?;
    } else {
        table::write(&mut terminal::stdout(), &results, &plan)?;
        for plot in Plot::all(&results) {
            chart::print(&plot)?;
        }
    }
    Ok(if results.is_whole(&plan) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
