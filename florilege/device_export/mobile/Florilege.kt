// Prediction sets on Android, from the outputs of model.onnx in com.microsoft.onnxruntime:onnxruntime-android.

import org.json.JSONArray
import org.json.JSONObject
import kotlin.math.exp

/** A prediction set: indices of classes, best first, and what was measured of sets like it. */
data class PredictionSet(
    val classes: List<Int>,
    val scores: DoubleArray, // of all classes
    val lambda: Double, // a class is in the set if its score is at least this
    val calibrated: Boolean, // whether lambda was chosen for this number of photos
    val hitRate: Double?, // share of sets that held the right class; null if unknown
)

/** The content of pack.json. */
class Florilege(pack: String) {
    private val json = JSONObject(pack)
    private val calibration = json.getJSONObject("calibration")

    /** The output of the network to pass to [predict]. */
    val output: String = json.getString("output")

    val classIds: List<String> = json.getJSONArray("classes").objects().map { it.getString("id") }

    /** The set for the photos of one plant: their logits, and a calibrated mean set size. */
    fun predict(photos: List<FloatArray>, k: Double = calibration.getDouble("default_k")): PredictionSet {
        val own = calibrated(photos.size, k)
        val (table, point) = own ?: requireNotNull(calibrated(1, k)) { "k = $k is not calibrated" }
        val scores = fuse(photos.map { scoresOf(it) })
        val lambda = point.getDouble("lambda")
        val order = scores.indices.sortedByDescending { scores[it] } // stable: ties keep their order
        val size = order.count { scores[it] >= lambda }.coerceAtLeast(table.getInt("min_size"))
        val rate = if (own == null) null else point.optJSONObject("hit_rate")
        return PredictionSet(order.take(size), scores, lambda, own != null, rate?.getDouble("value"))
    }

    private fun calibrated(images: Int, k: Double): Pair<JSONObject, JSONObject>? {
        val table = calibration.getJSONArray("tables").objects().firstOrNull {
            it.getString("rule") == "average_k" && it.getBoolean("usual") &&
                it.getInt("images") == images && it.isNull("list") && it.isNull("place")
        } ?: return null
        val point = table.getJSONArray("points").objects().firstOrNull { it.getDouble("k") == k }
        return point?.let { table to it }
    }

    /** Scores of one photo, in double precision. */
    private fun scoresOf(logits: FloatArray): DoubleArray {
        val temperature = calibration.getDouble("temperature")
        val scaled = DoubleArray(logits.size) { logits[it] / temperature }
        if (calibration.getString("score_kind") == "sigmoid") {
            return DoubleArray(scaled.size) {
                if (scaled[it] >= 0) 1 / (1 + exp(-scaled[it])) else exp(scaled[it]) / (1 + exp(scaled[it]))
            }
        }
        val best = scaled.max()
        val powers = DoubleArray(scaled.size) { exp(scaled[it] - best) }
        val total = powers.sum()
        return DoubleArray(powers.size) { powers[it] / total }
    }

    /** The mean over photos. */
    private fun fuse(rows: List<DoubleArray>) =
        DoubleArray(rows[0].size) { place -> rows.map { it[place] }.sorted().sum() / rows.size }
}

private fun JSONArray.objects() = (0 until length()).map { getJSONObject(it) }
