//! From a specification to a fabric: checks first, then ports, attachments and routes.

use metaroce_wire::{HostId, PlaneId};

use crate::balance::{self, Balancer};
use crate::explicit::Queues;
use crate::fabric::{Attachment, Fabric, SwitchState};
use crate::loss::{ECMP, ECN, LOSS, Loss, mix, stream};
use crate::pfc::FlowControl;
use crate::port::Port;
use crate::routing::{Edge, PlaneShape, Routes};
use crate::spec::{Balance, FabricSpec, SpecError, Switching};

/// Rates above this, bit/s, would need less than a picosecond a byte.
pub const MAX_RATE: u64 = 8_000_000_000_000;
/// Links of a node: what a routing choice can name.
pub const MAX_DEGREE: u32 = 1023;
/// Most planes. Ours: published results have 4 and 8.
pub const MAX_PLANES: u32 = 8;
/// Most tiers of switches: a three-tier fat tree.
pub const MAX_TIERS: u32 = 3;

impl Fabric {
    /// Builds the fabric.
    ///
    /// # Errors
    /// [`SpecError`] naming the first field that is out of range, or a pair of hosts that no route connects.
    pub fn new(spec: &FabricSpec) -> Result<Fabric, SpecError> {
        check(spec)?;
        let mut ports = Vec::with_capacity(2 * spec.cables.len());
        let mut sides = Vec::with_capacity(2 * spec.cables.len());
        let mut ends = Vec::with_capacity(2 * spec.cables.len());
        for (row, cable) in spec.cables.iter().enumerate() {
            for (direction, (from, to)) in [(cable.a, cable.b), (cable.b, cable.a)].into_iter().enumerate() {
                let entity = (2 * row + direction) as u64;
                let marks = spec.switching.last_hop_ecn || to >= spec.hosts;
                let port = Port::new(cable, to, from < spec.hosts, marks);
                sides.push(port.side(cable, stream(spec.seed, entity, LOSS), stream(spec.seed, entity, ECN)));
                ports.push(port);
                ends.push(to);
            }
        }
        let (attachments, uplinks, shapes) = attach(spec)?;
        let mut offsets = vec![0; spec.switches.len()];
        let mut offset = 0;
        for shape in &shapes {
            for &switch in &shape.switches {
                offsets[switch as usize] = offset;
                offset += shape.leaves.len() as u32;
            }
        }
        let edges = edges(spec);
        let routes = Routes::build(&shapes, &offsets, &edges);
        let Switching { control_priority, explicit_queues, lossless, .. } = spec.switching;
        let explicit = if explicit_queues || lossless.is_some() { 2 * spec.cables.len() } else { 0 };
        let mut fabric = Fabric {
            hosts: spec.hosts,
            ecmp: spec.ecmp,
            hash: (spec.switching.balance == Balance::Ecmp).then_some(spec.ecmp),
            switching: spec.switching,
            balancer: Balancer::new(spec),
            loss: Loss::new(spec.loss),
            reroute_delay: spec.reroute_delay,
            switches: switch_states(spec, &shapes, &offsets),
            ports,
            sides,
            ends,
            attachments,
            uplinks,
            shapes,
            offsets,
            edges,
            routes,
            counters: Default::default(),
            down: Default::default(),
            cables: spec.cables.clone(),
            planes: spec.switches.iter().map(|s| s.plane).collect(),
            queues: Queues::new(explicit, control_priority || lossless.is_some(), control_priority),
            flow: FlowControl::new(spec)?,
            looks_ahead: true,
            outs: Vec::new(),
        };
        fabric.set_strides();
        if !spec.islands {
            fabric.check_reachable()?;
        }
        Ok(fabric)
    }

    /// Each tier reads its own bits of the source port: those above the bits of the tiers below.
    fn set_strides(&mut self) {
        for shape in &self.shapes {
            let widest = |tier: u32, switches: &[SwitchState]| {
                let of_tier = shape.switches.iter().filter(|&&s| switches[s as usize].tier == tier);
                let columns = shape.leaves.len() as u32;
                let choices = of_tier.flat_map(|&s| {
                    let first = self.offsets[s as usize];
                    &self.routes.choices[first as usize..(first + columns) as usize]
                });
                choices.map(|c| c.count()).max().unwrap_or(1).max(1)
            };
            let mut shift = 0;
            for tier in 1..=MAX_TIERS {
                let width = widest(tier, &self.switches);
                for &s in &shape.switches {
                    if self.switches[s as usize].tier == tier {
                        self.switches[s as usize].stride_shift = shift;
                    }
                }
                shift += width.next_power_of_two().trailing_zeros();
            }
        }
    }

    /// Distinct routes between far hosts of a plane: the product of the choices on the way.
    pub fn routes(&self) -> u32 {
        let last_tier = |shape: &PlaneShape| shape.leaves.iter().map(|&leaf| self.fan(shape, leaf)).max().unwrap_or(1);
        self.shapes.iter().map(last_tier).max().unwrap_or(1)
    }

    /// The same between `host` and those far from it.
    pub fn routes_of(&self, host: HostId) -> u32 {
        let planes = self.shapes.iter().enumerate();
        let attached = planes.filter_map(|(plane, shape)| Some((shape, self.attachment(host, PlaneId(plane as u8))?)));
        attached.map(|(shape, at)| self.fan(shape, at.leaf)).max().unwrap_or(1)
    }

    fn fan(&self, shape: &PlaneShape, leaf: u32) -> u32 {
        let mut most = 1;
        for column in 0..shape.leaves.len() as u32 {
            let (mut switch, mut product) = (leaf, 1u32);
            while shape.leaves[column as usize] != switch {
                let choice = self.routes.choices[(self.offsets[switch as usize] + column) as usize];
                if choice.count() == 0 {
                    break;
                }
                product = product.saturating_mul(choice.count());
                switch = self.ends[self.routes.hops[choice.first() as usize] as usize] - self.hosts;
            }
            most = most.max(product);
        }
        most
    }

    fn check_reachable(&self) -> Result<(), SpecError> {
        for (plane, shape) in self.shapes.iter().enumerate() {
            for &from in &shape.leaves {
                for (column, &to) in shape.leaves.iter().enumerate() {
                    let choice = self.routes.choices[self.offsets[from as usize] as usize + column];
                    if from != to && choice.count() == 0 {
                        let host = |leaf: u32| {
                            let of_plane = &self.attachments[plane * self.hosts as usize..][..self.hosts as usize];
                            of_plane.iter().position(|a| a.leaf == leaf).unwrap_or(0) as u32
                        };
                        return Err(SpecError::Disconnected { plane: plane as u32, a: host(from), b: host(to) });
                    }
                }
            }
        }
        Ok(())
    }
}

fn check(spec: &FabricSpec) -> Result<(), SpecError> {
    let nodes = spec.hosts as usize + spec.switches.len();
    if spec.hosts == 0 {
        return Err(SpecError::range("fabric.hosts", 0, "at least 1"));
    }
    if spec.planes == 0 || spec.planes > MAX_PLANES {
        return Err(SpecError::range("fabric.planes", spec.planes, format!("1 to {MAX_PLANES}")));
    }
    for (i, switch) in spec.switches.iter().enumerate() {
        if switch.plane >= spec.planes {
            return Err(SpecError::range(
                format!("fabric.switches.plane[{i}]"),
                switch.plane,
                format!("below {}", spec.planes),
            ));
        }
        if !(1..=MAX_TIERS).contains(&switch.tier) {
            return Err(SpecError::range(
                format!("fabric.switches.tier[{i}]"),
                switch.tier,
                format!("1 to {MAX_TIERS}"),
            ));
        }
    }
    for (i, cable) in spec.cables.iter().enumerate() {
        let field = |name: &str| format!("fabric.links.{name}[{i}]");
        for (name, end) in [("a", cable.a), ("b", cable.b)] {
            if end as usize >= nodes {
                return Err(SpecError::range(field(name), end, format!("a node below {nodes}")));
            }
        }
        if cable.a < spec.hosts && cable.b < spec.hosts {
            return Err(SpecError::range(field("b"), cable.b, "a switch at one end at least"));
        }
        if cable.rate.0 == 0 || cable.rate.0 > MAX_RATE {
            return Err(SpecError::range(field("rate_bps"), cable.rate.0, format!("1 to {MAX_RATE}")));
        }
        if cable.queue.0 == 0 {
            return Err(SpecError::range(field("queue_bytes"), 0, "at least 1"));
        }
        if cable.kmin > cable.kmax {
            return Err(SpecError::range(
                field("ecn_kmin_bytes"),
                cable.kmin.0,
                format!("at most ecn_kmax_bytes = {}", cable.kmax.0),
            ));
        }
    }
    let mut degree = vec![0u32; nodes];
    for (i, cable) in spec.cables.iter().enumerate() {
        for end in [cable.a, cable.b] {
            degree[end as usize] += 1;
            if degree[end as usize] > MAX_DEGREE {
                return Err(SpecError::range(
                    format!("fabric.links.a[{i}]"),
                    end,
                    format!("at most {MAX_DEGREE} links a node"),
                ));
            }
        }
    }
    if !(0.0..1.0).contains(&spec.loss.probability) {
        return Err(SpecError::range("loss.probability", spec.loss.probability, "0 <= p < 1"));
    }
    balance::check(&spec.switching)
}

type Attached = (Vec<Attachment>, Vec<u32>, Vec<PlaneShape>);

/// Where each host hangs in each plane, and which switches are leaves.
fn attach(spec: &FabricSpec) -> Result<Attached, SpecError> {
    let hosts = spec.hosts as usize;
    let slots = hosts * spec.planes as usize;
    let mut attachments = vec![Attachment::NONE; slots];
    let mut uplinks = vec![u32::MAX; slots];
    let mut shapes = vec![PlaneShape::default(); spec.planes as usize];
    for (number, switch) in spec.switches.iter().enumerate() {
        shapes[switch.plane as usize].switches.push(number as u32);
    }
    for (row, cable) in spec.cables.iter().enumerate() {
        let (host, switch, up) = if cable.a < spec.hosts {
            (cable.a, cable.b - spec.hosts, 2 * row as u32)
        } else if cable.b < spec.hosts {
            (cable.b, cable.a - spec.hosts, 2 * row as u32 + 1)
        } else {
            continue;
        };
        let plane = spec.switches[switch as usize].plane as usize;
        let slot = plane * hosts + host as usize;
        if uplinks[slot] != u32::MAX {
            return Err(SpecError::range(
                "fabric.links",
                format!("a second link of host {host} in plane {plane}"),
                "one a plane",
            ));
        }
        let leaves = &mut shapes[plane].leaves;
        let column = leaves.iter().position(|&l| l == switch).unwrap_or_else(|| {
            leaves.push(switch);
            leaves.len() - 1
        });
        attachments[slot] = Attachment { leaf: switch, column: column as u32, down: up ^ 1 };
        uplinks[slot] = up;
    }
    let missing = |slot: usize| uplinks[slot] == u32::MAX;
    let first_missing = (0..slots).find(|&slot| match spec.islands {
        false => missing(slot),
        true => missing(slot) && (slot < hosts || (slot..slots).step_by(hosts).any(|later| !missing(later))),
    });
    if let Some(slot) = first_missing {
        let (host, plane) = (slot % hosts, slot / hosts);
        let allowed = if spec.islands { "the first planes for each host, one link in each" } else { "one a plane" };
        return Err(SpecError::range("fabric.links", format!("no link of host {host} in plane {plane}"), allowed));
    }
    Ok((attachments, uplinks, shapes))
}

fn edges(spec: &FabricSpec) -> Vec<Edge> {
    let mut edges = Vec::new();
    for (row, cable) in spec.cables.iter().enumerate() {
        if cable.a >= spec.hosts && cable.b >= spec.hosts {
            let (a, b, link) = (cable.a - spec.hosts, cable.b - spec.hosts, 2 * row as u32);
            edges.push(Edge { link, from: a, to: b, known_up: true, up: true });
            edges.push(Edge { link: link + 1, from: b, to: a, known_up: true, up: true });
        }
    }
    edges
}

fn switch_states(spec: &FabricSpec, shapes: &[PlaneShape], offsets: &[u32]) -> Vec<SwitchState> {
    let mut states: Vec<SwitchState> = spec
        .switches
        .iter()
        .enumerate()
        .map(|(number, switch)| SwitchState {
            offset: offsets[number],
            own_column: u32::MAX,
            seed: mix(mix(spec.seed ^ ECMP) ^ number as u64) as u32,
            tier: switch.tier,
            stride_shift: 0,
        })
        .collect();
    for shape in shapes {
        for (column, &leaf) in shape.leaves.iter().enumerate() {
            states[leaf as usize].own_column = column as u32;
        }
    }
    states
}
