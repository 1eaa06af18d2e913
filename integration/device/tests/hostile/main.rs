//! Peers that do not keep to the protocol, in both roles. Each costs its own connection and nothing
//! else: a healthy connection of the same engine goes on, nothing is left behind, and no receiver
//! was ever without a receive.

mod abrupt;
mod announcements;
mod bystander;
mod frames;
mod hellos;
mod keys;
mod landing;
mod large;
mod noise;
mod pace;
mod peer;
mod scene;
mod sessions;
mod shared;
mod silent;

use toolbox::frames as wire;
