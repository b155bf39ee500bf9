//! What the texts of kernel objects need besides the objects. They are as `ip` and `bridge` print them.

/// What an object contains only as numbers: route protocols, and the underlay interfaces of vxlan
/// links.
pub struct Words<'a> {
    pub protocol: &'a dyn Fn(u8) -> String,
    /// The name of the interface with an index.
    pub interface: &'a dyn Fn(u32) -> Option<String>,
}
