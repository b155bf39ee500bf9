//! Traffic rules equal Go flannel's exactly, have the intended effect on packets, and change to another mode without a gap. The daemon repairs
//! changed rules, writes nothing otherwise, and reports each obstacle to a repair only once.

mod content;
mod guard;
mod matrix;
pub(crate) mod node;
mod obstacles;
mod release;
mod repair;
mod restart;
mod switch;
