//! Exact lengths on the wire, preamble and inter-frame gap included, since both take link time.
//!
//! RoCEv2 lengths are IBTA's; the MetaRoCE-style ones are *ours*, since none is public.

/// Preamble and start delimiter 8, minimum gap between frames 12.
pub const GAP: u32 = 8 + 12;
/// Ethernet, IPv4 and UDP headers and the frame check sequence.
pub const FRAME: u32 = 14 + 20 + 8 + 4;
/// The shortest Ethernet frame, FCS included.
pub const MIN_FRAME: u32 = 64;

/// MetaRoCE-style base header: connection, path, epoch, kind.
pub const MR_BASE: u32 = 16;
/// MetaRoCE-style serial of the connection, in every data and request packet.
pub const MR_SERIAL: u32 = 4;
/// MetaRoCE-style data header: path sequence number, stream, message, packet.
pub const MR_DATA: u32 = 16;
/// MetaRoCE-style address header, in every data packet (F1): address and key, or receive index.
pub const MR_ADDRESS: u32 = 12;
/// MetaRoCE-style operands of a Read or atomic.
pub const MR_OPERANDS: u32 = 16;
/// MetaRoCE-style acknowledgement without SACK words.
pub const MR_ACK: u32 = 32;
/// One word of the selective acknowledgement.
pub const MR_SACK_WORD: u32 = 8;
/// MetaRoCE-style probe or its reply.
pub const MR_PROBE: u32 = 8;
/// CRC32C at the end of every MetaRoCE-style packet.
pub const MR_CRC: u32 = 4;

/// Base transport header.
pub const BTH: u32 = 12;
/// RDMA extended transport header: address, key, length.
pub const RETH: u32 = 16;
/// ACK extended transport header.
pub const AETH: u32 = 4;
/// Selective acknowledgement behind the AETH: sequence number 4, bits 8. Ours; IRN's carries one number.
pub const SACK: u32 = 12;
/// Immediate data.
pub const IMM: u32 = 4;
/// Atomic extended transport header: address, key, two operands.
pub const ATOMIC_ETH: u32 = 28;
/// Atomic ACK extended transport header: what was there.
pub const ATOMIC_ACK: u32 = 8;
/// Reserved bytes of a congestion notification packet.
pub const CNP: u32 = 16;
/// Invariant CRC.
pub const ICRC: u32 = 4;

/// MRC-like message header: message and receive-queue sequence numbers. Named in public text; its length is ours.
pub const METH: u32 = 8;
/// MRC-like sending time, in every data packet: 16 bits (public), padded.
pub const TSETH: u32 = 4;
/// Immediate data.
pub const IMMEDIATE: u32 = 4;
/// MRC-like selective acknowledgement: cumulative number, offsets, 64 bits, reflected entropy of 32. Length ours.
pub const SETH: u32 = 24;
/// MRC-like congestion state of an acknowledgement: time, out-of-order count, penalty, bytes. Length ours.
pub const CC_STATE: u32 = 8;
/// MRC-like negative acknowledgement: number, reason, reflected entropy. Length ours.
pub const NETH: u32 = 12;
/// MRC-like probe. Length ours.
pub const PETH: u32 = 8;

/// MetaRoCE-style data packet around `payload` bytes.
pub const fn mr_data(payload: u32) -> u32 {
    on_wire(MR_BASE + MR_SERIAL + MR_DATA + MR_ADDRESS + MR_CRC + payload)
}

/// MetaRoCE-style Read, atomic or flush request.
pub const fn mr_request() -> u32 {
    on_wire(MR_BASE + MR_SERIAL + MR_DATA + MR_ADDRESS + MR_OPERANDS + MR_CRC)
}

/// MetaRoCE-style acknowledgement with `words` SACK words of 64 bits.
pub const fn mr_ack(words: u32) -> u32 {
    on_wire(MR_BASE + MR_ACK + MR_SACK_WORD * words + MR_CRC)
}

/// MetaRoCE-style probe or its reply.
pub const fn mr_probe() -> u32 {
    on_wire(MR_BASE + MR_PROBE + MR_CRC)
}

/// RoCEv2 data packet around `payload` bytes; `first` carries the RETH.
pub const fn roce_data(payload: u32, first: bool) -> u32 {
    on_wire(BTH + if first { RETH } else { 0 } + payload + ICRC)
}

/// The last packet of a RoCEv2 Write with immediate data.
pub const fn roce_last_imm(payload: u32, first: bool) -> u32 {
    on_wire(BTH + if first { RETH } else { 0 } + IMM + payload + ICRC)
}

/// RoCEv2 Read request.
pub const fn roce_read() -> u32 {
    on_wire(BTH + RETH + ICRC)
}

/// RoCEv2 atomic request.
pub const fn roce_atomic() -> u32 {
    on_wire(BTH + ATOMIC_ETH + ICRC)
}

/// RoCEv2 Read response around `payload` bytes; the first and the last of a Read carry the AETH.
pub const fn roce_response(payload: u32, ends: bool) -> u32 {
    on_wire(BTH + if ends { AETH } else { 0 } + payload + ICRC)
}

/// RoCEv2 acknowledgement of an atomic.
pub const fn roce_atomic_ack() -> u32 {
    on_wire(BTH + AETH + ATOMIC_ACK + ICRC)
}

/// RoCEv2 ACK or NAK.
pub const fn roce_ack() -> u32 {
    on_wire(BTH + AETH + ICRC)
}

/// RoCEv2 selective acknowledgement.
pub const fn roce_sack() -> u32 {
    on_wire(BTH + AETH + SACK + ICRC)
}

/// RoCEv2 congestion notification packet: BTH and 16 reserved bytes.
pub const fn roce_cnp() -> u32 {
    on_wire(BTH + CNP + ICRC)
}

/// MRC-like data packet around `payload` bytes: all of them carry the RETH; `imm` carries immediate data.
pub const fn mrc_data(payload: u32, imm: bool) -> u32 {
    on_wire(BTH + METH + TSETH + RETH + if imm { IMMEDIATE } else { 0 } + payload + ICRC)
}

/// MRC-like selective acknowledgement.
pub const fn mrc_sack() -> u32 {
    on_wire(BTH + SETH + CC_STATE + ICRC)
}

/// MRC-like negative acknowledgement.
pub const fn mrc_nack() -> u32 {
    on_wire(BTH + NETH + ICRC)
}

/// MRC-like reliability probe.
pub const fn mrc_probe() -> u32 {
    on_wire(BTH + PETH + TSETH + ICRC)
}

/// A data packet whose payload a switch has cut off: the shortest frame that holds the headers of
/// any transport, so that the receiver learns which packet it was. Ours; UET 1.0.3 asks a switch to
/// keep 24 bytes at least.
pub const TRIMMED: u32 = mr_data(0);

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
        assert_eq!(roce_sack(), 20 + 78);
        assert_eq!(roce_last_imm(0, true), 20 + 82);
        assert_eq!((roce_read(), roce_atomic()), (20 + 78, 20 + 90));
        assert_eq!(roce_response(4096, true), 20 + 46 + 20 + 4096);
        assert_eq!(roce_response(4096, false), 20 + 46 + 16 + 4096);
        assert_eq!((roce_ack(), roce_atomic_ack()), (20 + 66, 20 + 74));
        assert_eq!(roce_cnp(), 20 + 78);
        assert_eq!(mrc_data(4096, false), 20 + 46 + 44 + 4096);
        assert_eq!(mrc_data(0, true), 20 + 46 + 48);
        assert_eq!((mrc_sack(), mrc_nack(), mrc_probe()), (20 + 46 + 48, 20 + 46 + 28, 20 + 46 + 28));
        assert!(TRIMMED >= mrc_data(0, true));
    }
}
