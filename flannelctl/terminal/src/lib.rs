//! What the command-line programs share: printable output, tables and steps on a terminal, checks of
//! permissions, and the options of `flannelctl lab`.

pub mod lab;
pub mod out;
pub mod rights;
pub mod screen;
