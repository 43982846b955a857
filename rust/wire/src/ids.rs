//! Identifiers: distinct types, so that a plane cannot be taken for a host.

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident($inner:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            /// The identifier as an index.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// A host: one endpoint with one NIC port in each plane.
    HostId(u32);
    /// A plane; at a host also the NIC port that leads into it.
    PlaneId(u8);
    /// A connection (peer pair) as numbered by the endpoint that owns it; 24 bits on the wire.
    ConnId(u32);
    /// An ordered stream of messages on a connection; 16 bits on the wire.
    StreamId(u16);
    /// The remote key of a registered memory region.
    Rkey(u32);
}
