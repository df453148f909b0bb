// Prediction sets on iOS, from the outputs of model.onnx in the pod onnxruntime-objc.

import Foundation

/// A prediction set: indices of classes, best first, and what was measured of sets like it.
struct PredictionSet {
    let classes: [Int]
    let scores: [Double]  // of all classes; 0 for those that the list lacks
    let lambda: Double  // a class is in the set if its score is at least this
    let calibrated: Bool  // whether lambda was chosen for this number of photos, this list and this kind of place
    let hitRate: Double?  // share of sets that held the right class; nil if unknown
    let unfamiliar: Bool?  // whether the photos look unlike those of the training; nil if unknown
    let noneOfThese: Bool?  // whether they may show none of the classes; nil if unknown
    let inRange: [Bool?]  // whether each class was recorded at the place; nil if unknown
    let placeUsed: Bool  // whether the place changed the scores

    /// The share to show: none holds for photos that look unlike those of the training.
    var shownHitRate: Double? { unfamiliar == true ? nil : hitRate }
}

enum PredictionError: Error {
    case noPhoto
    case wrongNumberOfLogits
    case wrongNumberOfFeatures
    case unknownList
    case notCalibrated
    case noPlaces
    case noMonth
}

/// Where and when a photo was taken: a region of the pack, and a month from 1 to 12, or 0 if unknown.
struct Place {
    let region: String
    var month = 0
}

/// The content of pack.json, and of the files that it names.
struct Florilege {
    struct ClassInfo: Decodable { let id: String, scientificName: String }
    struct Figure: Decodable { let value: Double }
    struct Point: Decodable { let k: Double?, lambda: Double?, hitRate: Figure? }
    struct Table: Decodable {
        let rule: String, usual: Bool, images: Int, list: String?, place: String?, minSize: Int
        let fusion: Double?  // exponent of a product of likelihoods; nil for the mean of scores
        let points: [Point]
    }
    struct ClassList: Decodable { let name: String, classes: [Int] }
    struct LogitsRule: Decodable { let threshold: Double, scoreKind: String }
    struct Unseen: Decodable { let threshold: Double }
    struct Rejection: Decodable {
        let method: String, threshold: Double, scoreKind: String, byLogits: LogitsRule?
        let centres: [Double]?, scales: [Double]?, unseen: [Unseen]?
    }
    struct Calibration: Decodable {
        let scoreKind: String, temperature: Double, defaultK: Double, tables: [Table], prior: [Double]
        let lists: [ClassList]  // output indices of the classes of each
        let rejection: Rejection?
        let placeStrength: Double
    }
    struct ReferenceFile: Decodable { let path: String, axes: [Int], photos: Int }
    struct OccurrenceFile: Decodable {
        let path: String, regions: [String], classes: Int, entries: Int, cellDegrees: Double?
    }
    struct Pack: Decodable {
        let output: String, features: String?, classes: [ClassInfo], calibration: Calibration
        let reference: ReferenceFile?, occurrences: OccurrenceFile?
    }

    let output: String  // the output of the network to pass to `predict`
    let features: String?  // the output of the network to pass as features; nil if it has none
    let classes: [ClassInfo]
    let calibration: Calibration
    private let reference: Reference?
    private let occurrences: Occurrences?

    /// `open` reads the other files of the folder by their path, for strangers and places.
    init(pack: Data, open: ((String) throws -> Data)? = nil) throws {
        let decoder = JSONDecoder()
        decoder.keyDecodingStrategy = .convertFromSnakeCase
        let content = try decoder.decode(Pack.self, from: pack)
        output = content.output
        features = content.features
        classes = content.classes
        calibration = content.calibration
        reference = try content.reference.flatMap { about in
            try open.map { Reference(about, try $0(about.path)) }
        }
        occurrences = try content.occurrences.flatMap { about in
            try open.map { Occurrences(about, try $0(about.path)) }
        }
    }

    /// The names of the regions with records.
    var regions: [String] { occurrences?.about.regions ?? [] }

    /// The region of a position; nil if the pack has no grid of regions.
    func region(latitude: Double, longitude: Double) -> String? {
        guard let side = occurrences?.about.cellDegrees else { return nil }
        let corner = [latitude, longitude].map { ($0 / side).rounded(.down) * side + 0 }
        return String(format: "cell%g_%g_%g", side, corner[0], corner[1])
    }

    /// The set for the photos of one plant: their logits, a calibrated mean set size, the name of a
    /// list if only its classes are possible, their features, and where they were taken.
    ///
    /// Throws a `PredictionError` without photos, if logits are not those of all classes, if the list
    /// is unknown or k not calibrated, if a photo lacks its features, or if there is a place but no
    /// table of places.
    func predict(
        _ photos: [[Float]], k wanted: Double? = nil, list: String? = nil, features: [[Float]]? = nil,
        place: Place? = nil
    ) throws -> PredictionSet {
        guard !photos.isEmpty else { throw PredictionError.noPhoto }
        guard photos.allSatisfy({ $0.count == classes.count })
        else { throw PredictionError.wrongNumberOfLogits }
        let listed = try outputs(of: list)
        let effect = try self.effect(of: place)
        let used = effect?.known == true && calibration.placeStrength > 0
        let lift = used ? listed.map { calibration.placeStrength * effect!.lift[$0] } : nil
        let kind = used ? (place!.month == 0 ? "region" : "region_and_month") : nil
        guard let (table, point) = nearest(photos.count, list, kind, wanted ?? calibration.defaultK),
            let lambda = point.lambda
        else { throw PredictionError.notCalibrated }
        let among = self.scores(photos, listed, lift, table.fusion)
        var scores = [Double](repeating: 0, count: classes.count)
        for (at, index) in listed.enumerated() { scores[index] = among[at] }
        let order = listed.sorted { (scores[$1], $0) < (scores[$0], $1) }  // ties keep their order
        let size = max(table.minSize, order.filter { scores[$0] >= lambda }.count)
        let calibrated = table.images == photos.count && table.list == list && table.place == kind
        let compared = try compare(features, photos: photos.count)
        return PredictionSet(
            classes: Array(order.prefix(size)), scores: scores, lambda: lambda,
            calibrated: calibrated, hitRate: calibrated ? point.hitRate?.value : nil,
            unfamiliar: isUnfamiliar(photos, compared), noneOfThese: noneOfThese(compared),
            inRange: effect?.inRange ?? classes.map { _ in nil }, placeUsed: used)
    }

    /// Output indices of the classes of a list, ascending; of all classes without one.
    private func outputs(of list: String?) throws -> [Int] {
        guard let list else { return Array(classes.indices) }
        guard let known = calibration.lists.first(where: { $0.name == list })
        else { throw PredictionError.unknownList }
        return known.classes
    }

    private func effect(of place: Place?) throws -> PlaceEffect? {
        guard let place else { return nil }
        guard (0...12).contains(place.month) else { throw PredictionError.noMonth }
        guard let occurrences else { throw PredictionError.noPlaces }
        return occurrences.effect(place)
    }

    /// What the features of each photo have in common with those of training photos.
    private func compare(_ features: [[Float]]?, photos: Int) throws -> [[Double]]? {
        guard let features else { return nil }
        let size = reference?.axes.first?.count
        guard features.count == photos, size == nil || features.allSatisfy({ $0.count == size })
        else { throw PredictionError.wrongNumberOfFeatures }
        return reference.map { reference in features.map { reference.compare($0) } }
    }

    /// Scores of the listed classes, with what a place adds to their logits.
    private func scores(_ photos: [[Float]], _ listed: [Int], _ lift: [Double]?, _ exponent: Double?)
        -> [Double]
    {
        let rows = photos.map { logits in
            Self.among(listed.map { Double(logits[$0]) / calibration.temperature })
        }
        if let exponent { return product(rows, listed, exponent, lift) }
        return Self.fuse(
            rows.map { row in
                Self.scores(lift.map { zip(row, $0).map(+) } ?? row, calibration.scoreKind)
            })
    }

    /// Whether all photos are less familiar than the threshold: by features and logits, or by logits
    /// alone.
    private func isUnfamiliar(_ photos: [[Float]], _ compared: [[Double]]?) -> Bool? {
        guard let whole = calibration.rejection else { return nil }
        if whole.method == "combined", let compared, let centres = whole.centres, let scales = whole.scales {
            return zip(photos, compared).allSatisfy { logits, parts in
                let all = parts + [Self.familiarity(logits, whole.scoreKind)]
                let value = all.indices.reduce(0) { $0 + (all[$1] - centres[$1]) / scales[$1] }
                return value < whole.threshold
            }
        }
        let own = LogitsRule(threshold: whole.threshold, scoreKind: whole.scoreKind)
        guard let rule = whole.method == "combined" ? whole.byLogits : own else { return nil }
        return photos.allSatisfy { Self.familiarity($0, rule.scoreKind) < rule.threshold }
    }

    /// Whether some photo is at most as similar to a training photo as those of unknown classes.
    private func noneOfThese(_ compared: [[Double]]?) -> Bool? {
        guard let nearest = compared?.map({ $0[0] }).min(),
            let threshold = calibration.rejection?.unseen?.first?.threshold
        else { return nil }
        return nearest <= threshold
    }

    /// Minus the generalised entropy of the best 100 scores.
    private static func familiarity(_ logits: [Float], _ kind: String) -> Double {
        let best = scores(logits.map { Double($0) }, kind).sorted(by: >).prefix(100)
        return -best.reduce(0) { $0 + pow($1 * (1 - $1), 0.1) }
    }

    /// The threshold of this circumstance, or else of the most similar one: a list matters most, a
    /// place least.
    private func nearest(_ images: Int, _ list: String?, _ place: String?, _ k: Double) -> (Table, Point)? {
        for name in list == nil ? [nil] : [list, nil] {
            for count in images == 1 ? [1] : [images, 1] {
                for kind in place == nil ? [nil] : [place, nil] {
                    if let point = calibrated(count, name, kind, k) { return point }
                }
            }
        }
        return nil
    }

    private func calibrated(_ images: Int, _ list: String?, _ place: String?, _ k: Double)
        -> (Table, Point)?
    {
        let table = calibration.tables.first {
            $0.rule == "average_k" && $0.usual && $0.images == images && $0.list == list
                && $0.place == place
        }
        guard let table, let point = table.points.first(where: { $0.k == k }) else { return nil }
        return (table, point)
    }

    /// Logits of the listed classes; if none of them is possible, all are equal.
    private static func among(_ logits: [Double]) -> [Double] {
        logits.allSatisfy { $0 == -.infinity } ? logits.map { _ in 0 } : logits
    }

    /// Scores of one photo, in double precision.
    private static func scores(_ logits: [Double], _ kind: String) -> [Double] {
        if kind == "sigmoid" {
            return logits.map { $0 >= 0 ? 1 / (1 + exp(-$0)) : exp($0) / (1 + exp($0)) }
        }
        let best = logits.max() ?? 0
        let powers = logits.map { exp($0 - best) }
        let total = powers.reduce(0, +)
        return powers.map { $0 / total }
    }

    /// A product of the photos' likelihoods, with the prior and the place counted once.
    private func product(_ photos: [[Double]], _ listed: [Int], _ exponent: Double, _ lift: [Double]?)
        -> [Double]
    {
        let prior = listed.map { log(calibration.prior[$0]) }
        let evidence = photos.map { logits -> [Double] in
            let best = logits.max() ?? 0
            let sum = log(logits.reduce(0) { $0 + exp($1 - best) }) + best
            return logits.indices.map { logits[$0] - sum - prior[$0] }
        }
        let fused = prior.indices.map { at -> Double in
            let likelihood = exponent * evidence.map { $0[at] }.sorted().reduce(0, +)
            return likelihood + prior[at] + (lift?[at] ?? 0)
        }
        return Self.scores(fused.allSatisfy { $0 == -.infinity } ? prior : fused, "softmax")
    }

    /// The mean over photos.
    private static func fuse(_ rows: [[Double]]) -> [Double] {
        rows[0].indices.map { at in
            rows.map { $0[at] }.sorted().reduce(0, +) / Double(rows.count)
        }
    }
}

/// Reads numbers one after the other, little-endian.
private struct Numbers {
    let content: [UInt8]
    var at = 0

    init(_ content: Data) { self.content = [UInt8](content) }

    mutating func next<Bits: FixedWidthInteger>(_: Bits.Type) -> Bits {
        var value: Bits = 0
        for byte in 0..<MemoryLayout<Bits>.size { value |= Bits(truncatingIfNeeded: Int(content[at + byte])) << (8 * byte) }
        at += MemoryLayout<Bits>.size
        return value
    }
}

/// Features of training photos: axes, and the direction of each photo along them.
private struct Reference {
    let axes: [[Float]]
    let directions: [[Float]]

    init(_ about: Florilege.ReferenceFile, _ content: Data) {
        var numbers = Numbers(content)
        let (count, dimensions) = (about.axes[0], about.axes[1])
        axes = (0..<count).map { _ in
            (0..<dimensions).map { _ in Float(bitPattern: numbers.next(UInt32.self)) }
        }
        directions = (0..<about.photos).map { _ in
            (0..<count).map { _ in Self.fromHalf(numbers.next(UInt16.self)) }
        }
    }

    /// The cosine to the nearest training photo, and minus the length of what lies off the axes.
    func compare(_ features: [Float]) -> [Double] {
        let along = axes.map { Float(Self.dot($0, features)) }
        let length = Self.dot(along, along).squareRoot()
        let unit = along.map { Float(Double($0) / (length == 0 ? 1 : length)) }
        let nearest = directions.map { Self.dot($0, unit) }.max() ?? -.infinity
        return [nearest, -max(0, Self.dot(features, features) - length * length).squareRoot()]
    }

    private static func dot(_ a: [Float], _ b: [Float]) -> Double {
        var sum = 0.0
        for at in a.indices { sum += Double(a[at]) * Double(b[at]) }
        return sum
    }

    /// A number from the bits of its half-precision form.
    private static func fromHalf(_ bits: UInt16) -> Float {
        let (exponent, fraction) = (Int(bits >> 10 & 0x1f), Float(bits & 0x3ff))
        let size = exponent > 0 ? powf(2, Float(exponent - 15)) * (1 + fraction / 1024) : powf(2, -24) * fraction
        return bits & 0x8000 != 0 ? -size : size
    }
}

/// What a place changes: the logits of all classes, before a strength, and which were recorded there.
private struct PlaceEffect {
    let known: Bool, lift: [Double], inRange: [Bool?]
}

/// How often each class was recorded in each region and month.
private struct Occurrences {
    let about: Florilege.OccurrenceFile
    private let weights: [Double], bounds: [Int], classIndices: [Int], months: [Int]
    private static let pseudoRecords = 20.0
    private static let neighbour = 0.5

    init(_ about: Florilege.OccurrenceFile, _ content: Data) {
        var numbers = Numbers(content)
        self.about = about
        weights = (0..<about.entries).map { _ in Double(bitPattern: numbers.next(UInt64.self)) }
        bounds = (0...about.regions.count).map { _ in Int(numbers.next(Int32.self)) }
        classIndices = (0..<about.entries).map { _ in Int(numbers.next(Int32.self)) }
        months = (0..<about.entries).map { _ in Int(numbers.next(Int8.self)) }
    }

    func effect(_ place: Place) -> PlaceEffect {
        var totals = [Double](repeating: 0, count: about.classes)
        for row in weights.indices { totals[classIndices[row]] += weights[row] }
        let whole = totals.reduce(0, +) + Double(about.classes)
        let overall = totals.map { ($0 + 1) / whole }
        var share = overall
        for month in place.month == 0 ? [0] : [0, place.month] {
            let recorded = counts(place.region, month)
            let total = recorded.reduce(0, +) + Self.pseudoRecords
            share = share.indices.map { (recorded[$0] + Self.pseudoRecords * share[$0]) / total }
        }
        let here = counts(place.region, place.month)
        let known = about.regions.contains(place.region)
        return PlaceEffect(
            known: known,
            lift: share.indices.map { totals[$0] > 0 ? log(share[$0] / overall[$0]) : 0 },
            inRange: totals.indices.map { known && totals[$0] > 0 ? here[$0] > 0 : nil })
    }

    /// Records of each class in a region; with a month, those of its neighbours count half.
    private func counts(_ region: String, _ month: Int) -> [Double] {
        var sums = [Double](repeating: 0, count: about.classes)
        guard let at = about.regions.firstIndex(of: region) else { return sums }
        for row in bounds[at]..<bounds[at + 1] {
            sums[classIndices[row]] += factor(months[row], month) * weights[row]
        }
        return sums
    }

    private func factor(_ recorded: Int, _ month: Int) -> Double {
        if month == 0 { return 1 }
        if recorded == 0 { return (1 + 2 * Self.neighbour) / 12 }  // spread evenly over the year
        let apart = min(abs(recorded - month), 12 - abs(recorded - month))
        return apart == 0 ? 1 : apart == 1 ? Self.neighbour : 0
    }
}
