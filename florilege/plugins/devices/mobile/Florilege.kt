// Prediction sets on Android, from the outputs of model.onnx in com.microsoft.onnxruntime:onnxruntime-android.

import java.math.BigDecimal
import java.math.MathContext
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.math.abs
import kotlin.math.exp
import kotlin.math.floor
import kotlin.math.ln
import kotlin.math.max
import kotlin.math.min
import kotlin.math.pow
import kotlin.math.sqrt
import org.json.JSONArray
import org.json.JSONObject

/** Where and when a photo was taken: a region of the pack, and a month from 1 to 12, or 0 if unknown. */
data class Place(val region: String, val month: Int = 0)

/** A prediction set: indices of classes, best first, and what was measured of sets like it. */
data class PredictionSet(
    val classes: List<Int>,
    val scores: DoubleArray, // of all classes; 0 for those that the list lacks
    val lambda: Double, // a class is in the set if its score is at least this
    val calibrated: Boolean, // whether lambda was chosen for this number of photos, this list and this kind of place
    val hitRate: Double?, // share of sets that held the right class; null if unknown
    val unfamiliar: Boolean?, // whether the photos look unlike those of the training; null if unknown
    val noneOfThese: Boolean?, // whether they may show none of the classes; null if unknown
    val inRange: List<Boolean?>, // whether each class was recorded at the place; null if unknown
    val placeUsed: Boolean, // whether the place changed the scores
) {
    /** The share to show: none holds for photos that look unlike those of the training. */
    val shownHitRate get() = if (unfamiliar == true) null else hitRate
}

/** The content of pack.json; [open] reads the other files of the folder by their path, for strangers and places. */
class Florilege(pack: String, open: ((String) -> ByteArray)? = null) {
    private val json = JSONObject(pack)
    private val calibration = json.getJSONObject("calibration")
    private val reference = json.optJSONObject("reference")?.let { about -> open?.let { Reference(about, it(about.getString("path"))) } }
    private val occurrences = json.optJSONObject("occurrences")?.let { about -> open?.let { Occurrences(about, it(about.getString("path"))) } }

    /** The output of the network to pass to [predict]. */
    val output: String = json.getString("output")

    /** The output of the network to pass as features; null if it has none. */
    val features: String? = if (json.isNull("features")) null else json.getString("features")

    val classIds: List<String> = json.getJSONArray("classes").objects().map { it.getString("id") }

    /** Output indices of the classes of each list, by name. */
    val lists: Map<String, List<Int>> = calibration.getJSONArray("lists").objects()
        .associate { it.getString("name") to it.getJSONArray("classes").ints() }

    /** The names of the regions with records. */
    val regions: List<String> get() = occurrences?.regions ?: emptyList()

    /** The region of a position; null if the pack has no grid of regions. */
    fun regionAt(latitude: Double, longitude: Double): String? {
        val side = occurrences?.cellDegrees ?: return null
        val corner = listOf(latitude, longitude).map { short(floor(it / side) * side) }
        return "cell${short(side)}_${corner.joinToString("_")}"
    }

    /**
     * The set for the photos of one plant: their logits, a calibrated mean set size, the name of a
     * list if only its classes are possible, their features, and where they were taken.
     *
     * Throws IllegalArgumentException without photos, if logits are not those of all classes, if the
     * list is unknown or k not calibrated, if a photo lacks its features, or if there is a place but
     * no table of places.
     */
    fun predict(
        photos: List<FloatArray>,
        k: Double = calibration.getDouble("default_k"),
        list: String? = null,
        features: List<FloatArray>? = null,
        place: Place? = null,
    ): PredictionSet {
        require(photos.isNotEmpty()) { "there is no photo" }
        require(photos.all { it.size == classIds.size }) { "a photo has ${classIds.size} logits" }
        require(features == null || features.size == photos.size) { "each photo has features" }
        val listed = if (list == null) classIds.indices.toList()
        else requireNotNull(lists[list]) { "there is no list $list" }
        val effect = if (place == null) null else requireNotNull(occurrences) { "the pack has no places" }.effect(place)
        val strength = calibration.getDouble("place_strength")
        val lift = if (effect == null || !effect.known || strength == 0.0) null
        else DoubleArray(listed.size) { strength * effect.lift[listed[it]] }
        val kind = if (lift == null) null else if (place!!.month == 0) "region" else "region_and_month"
        val (table, point) = requireNotNull(nearest(photos.size, list, kind, k)) { "k = $k is not calibrated" }
        val among = scores(photos, listed, lift, if (table.isNull("fusion")) null else table.getDouble("fusion"))
        val scores = DoubleArray(classIds.size)
        listed.forEachIndexed { at, index -> scores[index] = among[at] }
        val lambda = point.getDouble("lambda")
        val order = listed.sortedByDescending { scores[it] } // stable: ties keep their order
        val size = order.count { scores[it] >= lambda }.coerceAtLeast(table.getInt("min_size"))
        val calibrated = table.getInt("images") == photos.size && table.text("list") == list && table.text("place") == kind
        val rate = if (calibrated) point.optJSONObject("hit_rate") else null
        val compared = if (reference == null) null else features?.map { reference.compare(it) }
        return PredictionSet(
            order.take(size), scores, lambda, calibrated, rate?.getDouble("value"), isUnfamiliar(photos, compared),
            noneOfThese(compared), effect?.inRange ?: List(classIds.size) { null }, lift != null,
        )
    }

    /** Scores of the listed classes, with what a place adds to their logits. */
    private fun scores(photos: List<FloatArray>, listed: List<Int>, lift: DoubleArray?, exponent: Double?): DoubleArray {
        val temperature = calibration.getDouble("temperature")
        val rows = photos.map { logits -> among(DoubleArray(listed.size) { logits[listed[it]] / temperature }) }
        if (exponent != null) return product(rows, listed, exponent, lift)
        return fuse(rows.map { row ->
            scoresOf(DoubleArray(row.size) { row[it] + (lift?.get(it) ?: 0.0) }, calibration.getString("score_kind"))
        })
    }

    /** Whether all photos are less familiar than the threshold: by features and logits, or by logits alone. */
    private fun isUnfamiliar(photos: List<FloatArray>, compared: List<DoubleArray>?): Boolean? {
        val whole = calibration.optJSONObject("rejection") ?: return null
        val combined = whole.getString("method") == "combined"
        val rule = if (combined && compared == null) whole.optJSONObject("by_logits") ?: return null else whole
        val kind = rule.getString("score_kind")
        return photos.indices.all { at ->
            val entropy = familiarity(scoresOf(photos[at].doubles(), kind))
            val value = if (!combined || compared == null) entropy else {
                val (centres, scales) = rule.getJSONArray("centres") to rule.getJSONArray("scales")
                (compared[at] + entropy).withIndex().sumOf { (i, part) -> (part - centres.getDouble(i)) / scales.getDouble(i) }
            }
            value < rule.getDouble("threshold")
        }
    }

    /** Whether some photo is at most as similar to a training photo as those of unknown classes. */
    private fun noneOfThese(compared: List<DoubleArray>?): Boolean? {
        val unseen = calibration.optJSONObject("rejection")?.optJSONArray("unseen") ?: return null
        if (compared == null || unseen.length() == 0) return null
        return compared.minOf { it[0] } <= unseen.getJSONObject(0).getDouble("threshold")
    }

    /** Minus the generalised entropy of the best 100 scores. */
    private fun familiarity(scores: DoubleArray) =
        -scores.sortedDescending().take(100).sumOf { (it * (1 - it)).pow(0.1) }

    /** The threshold of this circumstance, or else of the most similar one: a list matters most, a place least. */
    private fun nearest(images: Int, list: String?, place: String?, k: Double): Pair<JSONObject, JSONObject>? {
        for (name in listOf(list, null).distinct()) for (count in listOf(images, 1).distinct()) {
            for (kind in listOf(place, null).distinct()) calibrated(count, name, kind, k)?.let { return it }
        }
        return null
    }

    private fun calibrated(images: Int, list: String?, place: String?, k: Double): Pair<JSONObject, JSONObject>? {
        val table = calibration.getJSONArray("tables").objects().firstOrNull {
            it.getString("rule") == "average_k" && it.getBoolean("usual") && it.text("place") == place &&
                it.getInt("images") == images && it.text("list") == list
        } ?: return null
        val point = table.getJSONArray("points").objects().firstOrNull { it.getDouble("k") == k }
        return point?.let { table to it }
    }

    /** Logits of the listed classes; if none of them is possible, all are equal. */
    private fun among(logits: DoubleArray) =
        if (logits.all { it == Double.NEGATIVE_INFINITY }) DoubleArray(logits.size) else logits

    /** Scores of one photo, in double precision. */
    private fun scoresOf(logits: DoubleArray, kind: String): DoubleArray {
        if (kind == "sigmoid") {
            return DoubleArray(logits.size) {
                if (logits[it] >= 0) 1 / (1 + exp(-logits[it])) else exp(logits[it]) / (1 + exp(logits[it]))
            }
        }
        val best = logits.max()
        val powers = DoubleArray(logits.size) { exp(logits[it] - best) }
        val total = powers.sum()
        return DoubleArray(powers.size) { powers[it] / total }
    }

    /** A product of the photos' likelihoods, with the prior and the place counted once. */
    private fun product(photos: List<DoubleArray>, listed: List<Int>, exponent: Double, lift: DoubleArray?): DoubleArray {
        val shares = calibration.getJSONArray("prior")
        val prior = DoubleArray(listed.size) { ln(shares.getDouble(listed[it])) }
        val evidence = photos.map { logits ->
            val best = logits.max()
            val sum = ln(logits.sumOf { exp(it - best) }) + best
            DoubleArray(logits.size) { logits[it] - sum - prior[it] }
        }
        val fused = DoubleArray(prior.size) { at ->
            exponent * evidence.map { it[at] }.sorted().sum() + prior[at] + (lift?.get(at) ?: 0.0)
        }
        return scoresOf(if (fused.all { it == Double.NEGATIVE_INFINITY }) prior else fused, "softmax")
    }

    /** The mean over photos. */
    private fun fuse(rows: List<DoubleArray>) =
        DoubleArray(rows[0].size) { at -> rows.map { it[at] }.sorted().sum() / rows.size }
}

/** Features of training photos: axes, and the direction of each photo along them. */
private class Reference(about: JSONObject, content: ByteArray) {
    private val axes: List<FloatArray>
    private val directions: List<FloatArray>

    init {
        val (count, dimensions) = about.getJSONArray("axes").ints()
        val bytes = ByteBuffer.wrap(content).order(ByteOrder.LITTLE_ENDIAN)
        axes = List(count) { FloatArray(dimensions) { bytes.getFloat() } }
        directions = List(about.getInt("photos")) { FloatArray(count) { fromHalf(bytes.getShort().toInt() and 0xffff) } }
    }

    /** The cosine to the nearest training photo, and minus the length of what lies off the axes. */
    fun compare(features: FloatArray): DoubleArray {
        require(features.size == axes[0].size) { "a photo has ${axes[0].size} features" }
        val along = FloatArray(axes.size) { dot(axes[it], features).toFloat() }
        val length = sqrt(dot(along, along))
        val unit = FloatArray(along.size) { (along[it] / (if (length == 0.0) 1.0 else length)).toFloat() }
        return doubleArrayOf(
            directions.maxOf { dot(it, unit) }, -sqrt(max(0.0, dot(features, features) - length * length)),
        )
    }

    private fun dot(a: FloatArray, b: FloatArray): Double {
        var sum = 0.0
        for (at in a.indices) sum += a[at].toDouble() * b[at]
        return sum
    }

    /** A number from the bits of its half-precision form. */
    private fun fromHalf(bits: Int): Float {
        val (exponent, fraction) = (bits shr 10 and 0x1f) to (bits and 0x3ff)
        val size = if (exponent > 0) 2f.pow(exponent - 15) * (1 + fraction / 1024f) else 2f.pow(-24) * fraction
        return if (bits and 0x8000 != 0) -size else size
    }
}

/** What a place changes: the logits of all classes, before a strength, and which were recorded there. */
private class PlaceEffect(val known: Boolean, val lift: DoubleArray, val inRange: List<Boolean?>)

/** How often each class was recorded in each region and month. */
private class Occurrences(about: JSONObject, content: ByteArray) {
    val regions: List<String> = about.getJSONArray("regions").let { names -> List(names.length()) { names.getString(it) } }
    val cellDegrees: Double? = if (about.isNull("cell_degrees")) null else about.getDouble("cell_degrees")
    private val classes = about.getInt("classes")
    private val bytes = ByteBuffer.wrap(content).order(ByteOrder.LITTLE_ENDIAN)
    private val weights = DoubleArray(about.getInt("entries")) { bytes.getDouble() }
    private val bounds = IntArray(regions.size + 1) { bytes.getInt() }
    private val classIndices = IntArray(weights.size) { bytes.getInt() }
    private val months = IntArray(weights.size) { bytes.get().toInt() }

    fun effect(place: Place): PlaceEffect {
        require(place.month in 0..12) { "a month is 1 to 12, or 0" }
        val totals = DoubleArray(classes)
        for (row in weights.indices) totals[classIndices[row]] += weights[row]
        val whole = totals.sum() + classes
        val overall = DoubleArray(classes) { (totals[it] + 1) / whole }
        var share = overall
        for (month in setOf(0, place.month)) {
            val (recorded, before) = counts(place.region, month) to share
            val total = recorded.sum() + PSEUDO_RECORDS
            share = DoubleArray(classes) { (recorded[it] + PSEUDO_RECORDS * before[it]) / total }
        }
        val (here, known) = counts(place.region, place.month) to (place.region in regions)
        return PlaceEffect(
            known,
            DoubleArray(classes) { if (totals[it] > 0) ln(share[it] / overall[it]) else 0.0 },
            List(classes) { if (known && totals[it] > 0) here[it] > 0 else null },
        )
    }

    /** Records of each class in a region; with a month, those of its neighbours count half. */
    private fun counts(region: String, month: Int): DoubleArray {
        val (sums, at) = DoubleArray(classes) to regions.indexOf(region)
        if (at < 0) return sums
        for (row in bounds[at] until bounds[at + 1]) {
            val gap = abs(months[row] - month)
            val factor = when {
                month == 0 -> 1.0
                months[row] == 0 -> (1 + 2 * NEIGHBOUR) / 12 // records without a month are spread over the year
                min(gap, 12 - gap) == 0 -> 1.0
                min(gap, 12 - gap) == 1 -> NEIGHBOUR
                else -> 0.0
            }
            sums[classIndices[row]] += factor * weights[row]
        }
        return sums
    }

    private companion object {
        const val PSEUDO_RECORDS = 20.0
        const val NEIGHBOUR = 0.5
    }
}

/** A number in at most six digits, without zeros at its end. */
private fun short(value: Double): String =
    if (value == 0.0) "0" else BigDecimal(value).round(MathContext(6)).stripTrailingZeros().toPlainString()

private fun JSONArray.objects() = (0 until length()).map { getJSONObject(it) }

// On Android, optString of a null is the text "null".
private fun JSONObject.text(key: String) = if (isNull(key)) null else getString(key)

private fun JSONArray.ints() = (0 until length()).map { getInt(it) }

private fun FloatArray.doubles() = DoubleArray(size) { this[it].toDouble() }
