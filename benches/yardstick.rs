//! How fast this machine is, at this minute, at what every packet-level simulator does: a bare event queue, and walks
//! through more state than the first-level caches hold. Speeds of the engine are told as ratios to it.
//!
//! A hop pops the earliest event, reads its packet, books time on a port drawn at random, and pushes the event again,
//! a serialisation and a propagation later; every sixth touches four lines of one host's connections, too. With two
//! events a hop, the end of the serialisation is an event of its own, as in a simulator with explicit queues. No
//! protocol, no checks, nothing shared with the engine: it changes only when this file does.
//!
//! Use: `yardstick [HOSTS]`, or as any bench of the workspace. One line a mode; speeds are by the CPU time of the thread.

#![forbid(unsafe_code)]

/// Buckets are 4 ns wide; with 4096 of them no event is further away than the wheel is long.
const SHIFT: u32 = 12;
const BUCKETS: usize = 1 << 12;
/// Cache lines of a connection, a line a path.
const PATHS: usize = 64;
/// Packets on their way for each host.
const FLIGHT: usize = 64;
/// Links for each host of a three-tier fat tree.
const PORTS: usize = 6;
const PROPAGATION: u64 = 1_000_000;
const HOPS: u64 = 4_000_000;

/// Pending events in the order of (time, sequence); the event itself is the low 32 bits.
struct Wheel {
    buckets: Vec<Vec<u128>>,
    current: Vec<u128>,
    cursor: u64,
    sequence: u32,
}

impl Wheel {
    fn new() -> Wheel {
        Wheel { buckets: vec![Vec::new(); BUCKETS], current: Vec::new(), cursor: 0, sequence: 0 }
    }

    fn push(&mut self, time: u64, event: u32) {
        self.sequence = self.sequence.wrapping_add(1);
        let key = u128::from(time) << 64 | u128::from(self.sequence) << 32 | u128::from(event);
        let bucket = time >> SHIFT;
        if bucket > self.cursor {
            self.buckets[bucket as usize % BUCKETS].push(key);
        } else {
            let at = self.current.partition_point(|&other| other > key);
            self.current.insert(at, key);
        }
    }

    /// There is always one: each that pops is pushed again.
    fn pop(&mut self) -> (u64, u32) {
        loop {
            if let Some(key) = self.current.pop() {
                return ((key >> 64) as u64, key as u32);
            }
            self.cursor += 1;
            std::mem::swap(&mut self.current, &mut self.buckets[self.cursor as usize % BUCKETS]);
            self.current.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
}

/// A cache line.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Line {
    time: u64,
    count: u64,
    length: u64,
    mark: u64,
}

struct Model {
    queue: Wheel,
    packets: Vec<Line>,
    ports: Vec<Line>,
    paths: Vec<Line>,
    random: u64,
}

impl Model {
    fn new(hosts: usize) -> Model {
        let mut model = Model {
            queue: Wheel::new(),
            packets: vec![Line::default(); FLIGHT * hosts],
            ports: vec![Line::default(); PORTS * hosts],
            paths: vec![Line::default(); PATHS * hosts],
            random: 1,
        };
        for packet in 0..model.packets.len() {
            // One in three is an acknowledgement.
            model.packets[packet].length = if packet % 3 == 0 { 84 } else { 4200 };
            let time = model.draw() as u64 % (PROPAGATION << 1);
            model.queue.push(time, (packet as u32) << 1);
        }
        model
    }

    fn draw(&mut self) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize
    }

    /// Books the time of a packet on a port drawn at random; answers when it is through.
    fn serialise(&mut self, now: u64, packet: usize) -> u64 {
        let port = self.draw() % self.ports.len();
        let (port, packet) = (&mut self.ports[port], &mut self.packets[packet]);
        // No queue is longer than 4 us, so that the wheel holds all.
        let waited = (port.time.saturating_sub(now)) % (4 * PROPAGATION);
        port.time = now + waited + 80 * packet.length;
        port.count += packet.length;
        port.mark += u64::from(waited > PROPAGATION);
        packet.count += 1;
        packet.time = port.time;
        port.time
    }

    /// What a host does: four lines of its paths.
    fn acknowledge(&mut self, now: u64) {
        let first = self.draw() % (self.paths.len() - 3);
        for path in &mut self.paths[first..first + 4] {
            path.count += 1;
            path.length = path.length.wrapping_add(now - path.time.min(now)) >> 1;
            path.time = now;
        }
    }

    fn run(&mut self, hops: u64, events: u64) -> u64 {
        let mut done = 0;
        while done < hops {
            let (now, event) = self.queue.pop();
            let packet = (event >> 1) as usize;
            if event & 1 == 1 {
                self.queue.push(now + PROPAGATION, event ^ 1);
                continue;
            }
            done += 1;
            let through = self.serialise(now, packet);
            if self.packets[packet].count.is_multiple_of(6) {
                self.acknowledge(now);
            }
            match events {
                1 => self.queue.push(through + PROPAGATION, event),
                _ => self.queue.push(through, event | 1),
            }
        }
        self.ports.iter().map(|port| port.mark).sum()
    }
}

/// Nanoseconds that this thread has been on a CPU: what others take away does not count, as in `benches/engine.py`.
fn cpu_time() -> u64 {
    let text =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("a Linux kernel with scheduler statistics");
    text.split(' ').next().and_then(|field| field.parse().ok()).expect("nanoseconds come first")
}

fn main() {
    let hosts = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(128);
    for (events, name) in [(1, "one event a hop"), (2, "two events a hop")] {
        let mut model = Model::new(hosts);
        model.run(HOPS / 8, events);
        let begin = cpu_time();
        let marks = model.run(HOPS, events);
        let hundredths = HOPS * 100_000 / (cpu_time() - begin).max(1);
        println!(
            "yardstick, {name}: {hosts} hosts, {marks} of {HOPS} hops late, by CPU time | {}.{:02} M hops/s",
            hundredths / 100,
            hundredths % 100
        );
    }
}
