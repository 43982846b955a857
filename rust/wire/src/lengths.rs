//! Exact lengths on the wire, preamble and inter-frame gap included, since both take link time.
//!
//! Layers: preamble 8 + gap 12, Ethernet 14 + FCS 4, IPv4 20, UDP 8. RoCEv2 adds BTH 12, RETH 16 in
//! the first packet of a Write, AETH 4 in an ACK, iCRC 4 (IBTA). The MetaRoCE-style header lengths
//! are *ours*: base 16 and serial 4, data 16, address 12, acknowledgement 32 + 8 a SACK word, CRC32C 4.

/// Preamble, start delimiter and minimum gap between frames.
pub const GAP: u32 = 20;
/// Ethernet, IPv4 and UDP headers and the frame check sequence.
pub const FRAME: u32 = 14 + 20 + 8 + 4;
/// The shortest Ethernet frame, FCS included.
pub const MIN_FRAME: u32 = 64;

/// MetaRoCE-style data packet around `payload` bytes.
pub const fn mr_data(payload: u32) -> u32 {
    on_wire(20 + 16 + 12 + 4 + payload)
}

/// MetaRoCE-style Read, atomic or flush request: an address part and two operands.
pub const fn mr_request() -> u32 {
    on_wire(20 + 16 + 12 + 16 + 4)
}

/// A data packet whose payload a switch has cut off: the shortest frame that holds the headers of
/// either transport, so that the receiver learns which packet it was. Ours; UET 1.0.3 asks a switch to
/// keep 24 bytes at least.
pub const TRIMMED: u32 = mr_data(0);

/// MetaRoCE-style acknowledgement with `words` SACK words of 64 bits.
pub const fn mr_ack(words: u32) -> u32 {
    on_wire(16 + 32 + 8 * words + 4)
}

/// MetaRoCE-style probe or its reply.
pub const fn mr_probe() -> u32 {
    on_wire(16 + 8 + 4)
}

/// RoCEv2 data packet around `payload` bytes; `first` carries the RETH.
pub const fn roce_data(payload: u32, first: bool) -> u32 {
    on_wire(12 + if first { 16 } else { 0 } + payload + 4)
}

/// RoCEv2 ACK or NAK.
pub const fn roce_ack() -> u32 {
    on_wire(12 + 4 + 4)
}

/// RoCEv2 congestion notification packet: BTH and 16 reserved bytes.
pub const fn roce_cnp() -> u32 {
    on_wire(12 + 16 + 4)
}

const fn on_wire(udp_payload: u32) -> u32 {
    let frame = FRAME + udp_payload;
    GAP + if frame < MIN_FRAME { MIN_FRAME } else { frame }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_the_sums_of_their_layers() {
        assert_eq!(mr_data(4096), 20 + 46 + 52 + 4096);
        assert_eq!(mr_ack(0), 20 + 46 + 52);
        assert_eq!(mr_ack(4), 20 + 46 + 84);
        assert_eq!(roce_data(4096, false), 20 + 46 + 16 + 4096);
        assert_eq!(roce_data(4096, true), 20 + 46 + 32 + 4096);
        assert_eq!(TRIMMED, 20 + 46 + 48);
        assert!(TRIMMED >= roce_data(0, true));
        assert_eq!(roce_ack(), 20 + 66);
        assert_eq!(roce_cnp(), 20 + 78);
    }
}
