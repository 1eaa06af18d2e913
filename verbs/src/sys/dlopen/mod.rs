//! librdmacm and libibverbs, opened at their first use, so that a program builds without the C
//! libraries and starts on hosts that do not have them.
//!
//! This module provides the same items as the module `linked`, as far as this crate uses them. The
//! declarations follow the ABI of the libraries. With the feature `linked`, the macros of `define`
//! generate tests that compare each declaration with the generated bindings.
#![allow(
    unsafe_code,
    non_camel_case_types,
    non_snake_case,
    reason = "C functions are unsafe, and all items keep their C names"
)]
#![cfg_attr(
    feature = "linked",
    allow(
        dead_code,
        unused_imports,
        reason = "only tests use this module, to compare it with the headers"
    )
)]

mod attributes;
mod constants;
mod define;
mod functions;
mod inline;
mod objects;
mod rdma_cm;
mod work;

pub(crate) use self::{
    attributes::*, constants::*, functions::*, inline::*, objects::*, rdma_cm::*, work::*,
};
