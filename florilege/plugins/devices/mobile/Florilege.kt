// Prediction sets on Android, from the outputs of model.onnx in com.microsoft.onnxruntime:onnxruntime-android.

import org.json.JSONArray
import org.json.JSONObject
import kotlin.math.exp
import kotlin.math.ln
import kotlin.math.pow

/** A prediction set: indices of classes, best first, and what was measured of sets like it. */
data class PredictionSet(
    val classes: List<Int>,
    val scores: DoubleArray, // of all classes; 0 for those that the list lacks
    val lambda: Double, // a class is in the set if its score is at least this
    val calibrated: Boolean, // whether lambda was chosen for this number of photos and this list
    val hitRate: Double?, // share of sets that held the right class; null if unknown
    val unfamiliar: Boolean?, // whether the photos look unlike those of the training; null if unknown
) {
    /** The share to show: none holds for photos that look unlike those of the training. */
    val shownHitRate get() = if (unfamiliar == true) null else hitRate
}

/** The content of pack.json. */
class Florilege(pack: String) {
    private val json = JSONObject(pack)
    private val calibration = json.getJSONObject("calibration")

    /** The output of the network to pass to [predict]. */
    val output: String = json.getString("output")

    val classIds: List<String> = json.getJSONArray("classes").objects().map { it.getString("id") }

    /** Output indices of the classes of each list, by name. */
    val lists: Map<String, List<Int>> = calibration.getJSONArray("lists").objects()
        .associate { it.getString("name") to it.getJSONArray("classes").ints() }

    /**
     * The set for the photos of one plant: their logits, a calibrated mean set size, and the name of
     * a list if only its classes are possible.
     *
     * Throws IllegalArgumentException without photos, if logits are not those of all classes, or if
     * the list is unknown or k not calibrated.
     */
    fun predict(
        photos: List<FloatArray>,
        k: Double = calibration.getDouble("default_k"),
        list: String? = null,
    ): PredictionSet {
        require(photos.isNotEmpty()) { "there is no photo" }
        require(photos.all { it.size == classIds.size }) { "a photo has ${classIds.size} logits" }
        val listed = if (list == null) classIds.indices.toList()
        else requireNotNull(lists[list]) { "there is no list $list" }
        val (table, point) = requireNotNull(nearest(photos.size, list, k)) { "k = $k is not calibrated" }
        val (kind, temperature) = calibration.getString("score_kind") to calibration.getDouble("temperature")
        val exponent = if (table.isNull("fusion")) null else table.getDouble("fusion")
        val rows = photos.map { logits -> among(DoubleArray(listed.size) { logits[listed[it]] / temperature }) }
        val among = if (exponent != null) product(rows, listed, exponent) else fuse(rows.map { scoresOf(it, kind) })
        val scores = DoubleArray(classIds.size)
        listed.forEachIndexed { place, index -> scores[index] = among[place] }
        val lambda = point.getDouble("lambda")
        val order = listed.sortedByDescending { scores[it] } // stable: ties keep their order
        val size = order.count { scores[it] >= lambda }.coerceAtLeast(table.getInt("min_size"))
        val calibrated = table.getInt("images") == photos.size && table.listName() == list
        val rate = if (calibrated) point.optJSONObject("hit_rate") else null
        return PredictionSet(order.take(size), scores, lambda, calibrated, rate?.getDouble("value"), isUnfamiliar(photos))
    }

    /** Whether all photos are less familiar than the threshold; features would need more files. */
    private fun isUnfamiliar(photos: List<FloatArray>): Boolean? {
        val whole = calibration.optJSONObject("rejection") ?: return null
        val rule = if (whole.getString("method") == "combined") whole.optJSONObject("by_logits") else whole
        if (rule == null) return null
        val kind = rule.getString("score_kind")
        return photos.all { familiarity(scoresOf(it.doubles(), kind)) < rule.getDouble("threshold") }
    }

    /** Minus the generalised entropy of the best 100 scores. */
    private fun familiarity(scores: DoubleArray) =
        -scores.sortedDescending().take(100).sumOf { (it * (1 - it)).pow(0.1) }

    /** The threshold of this circumstance, or else of the most similar one: a list matters most. */
    private fun nearest(images: Int, list: String?, k: Double): Pair<JSONObject, JSONObject>? {
        for (name in listOf(list, null).distinct()) for (count in listOf(images, 1).distinct()) {
            calibrated(count, name, k)?.let { return it }
        }
        return null
    }

    private fun calibrated(images: Int, list: String?, k: Double): Pair<JSONObject, JSONObject>? {
        val table = calibration.getJSONArray("tables").objects().firstOrNull {
            it.getString("rule") == "average_k" && it.getBoolean("usual") && it.isNull("place") &&
                it.getInt("images") == images && it.listName() == list
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

    /** A product of the photos' likelihoods, with the prior counted once. */
    private fun product(photos: List<DoubleArray>, listed: List<Int>, exponent: Double): DoubleArray {
        val shares = calibration.getJSONArray("prior")
        val prior = DoubleArray(listed.size) { ln(shares.getDouble(listed[it])) }
        val evidence = photos.map { logits ->
            val best = logits.max()
            val sum = ln(logits.sumOf { exp(it - best) }) + best
            DoubleArray(logits.size) { logits[it] - sum - prior[it] }
        }
        val fused = DoubleArray(prior.size) { place ->
            exponent * evidence.map { it[place] }.sorted().sum() + prior[place]
        }
        val usable = if (fused.all { it == Double.NEGATIVE_INFINITY }) prior else fused
        val powers = DoubleArray(usable.size) { exp(usable[it] - usable.max()) }
        return DoubleArray(powers.size) { powers[it] / powers.sum() }
    }

    /** The mean over photos. */
    private fun fuse(rows: List<DoubleArray>) =
        DoubleArray(rows[0].size) { place -> rows.map { it[place] }.sorted().sum() / rows.size }
}

private fun JSONArray.objects() = (0 until length()).map { getJSONObject(it) }

// On Android, optString of a null is the text "null".
private fun JSONObject.listName() = if (isNull("list")) null else getString("list")

private fun JSONArray.ints() = (0 until length()).map { getInt(it) }

private fun FloatArray.doubles() = DoubleArray(size) { this[it].toDouble() }
