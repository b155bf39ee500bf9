//! Checks that traffic rules equal Go flannel's rules exactly, work on packets, and follow a change of mode
//! without a gap. The daemon repairs changed rules, writes nothing otherwise, and reports obstacles once.

mod content;
mod guard;
mod matrix;
mod node;
mod obstacles;
mod repair;
mod restart;
mod switch;
