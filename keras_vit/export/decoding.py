"""Image files to pixels inside a TensorFlow graph: what `load_image` and `prepare` do in Python."""

import math

MAX_PIXELS = 50_000_000
MAX_SIDE = 65_535

OK, EMPTY, NOT_AN_IMAGE, DAMAGED, TOO_LARGE = (
    "ok",
    "empty",
    "not an image",
    "damaged or unsupported",
    "too large",
)

_AT_ONCE = 4  # files decoded in parallel; bounds the memory
_HEAD = 32  # bytes of a file that tell format and size
_ORIENTATION = 0x0112  # EXIF tag
_KERNELS = {"bilinear": "triangle", "bicubic": "keyscubic"}


def pictures(files, recipe, max_pixels=MAX_PIXELS):
    """Decodes, turns upright, resizes and crops encoded pictures, each on its own.

    What cannot be decoded is left out of a `tf.data` pipeline that ignores errors, the only place
    of a graph where an error ends less than the whole run; the others never notice.

    Args:
        files: string tensor (B,), the contents of JPEG, PNG, WebP, BMP or GIF files.
        recipe: a `Recipe`.
        max_pixels: a picture with more of them, or with a side above 65,535, is refused by its
            header, before it is decoded.

    Returns:
        Pixels, float32 (B, h, w, 3) of the recipe's size, 0..255, zeros where there is no picture;
        and status, string (B,): "ok", "empty", "not an image", "damaged or unsupported" or
        "too large".
    """
    import tensorflow as tf

    @tf.autograph.experimental.do_not_convert
    def picture(index, file):
        pixels, status = tf.cond(
            _is_too_large(file, max_pixels),
            lambda: (tf.zeros((*recipe.size, 3)), TOO_LARGE),
            lambda: (prepared(_upright(_decoded(file), orientation(file)), recipe), OK),
        )
        return index, tf.ensure_shape(pixels, (*recipe.size, 3)), status

    count = tf.size(files)
    options = tf.data.Options()
    options.autotune.enabled = False
    found = (
        tf.data.Dataset.from_tensor_slices((tf.range(count), files))
        .map(picture, num_parallel_calls=_AT_ONCE)
        .ignore_errors()
    )
    nothing = tf.data.Dataset.from_tensors((count, tf.zeros((*recipe.size, 3)), ""))
    everything = nothing.concatenate(found).batch(tf.cast(count, tf.int64) + 1)
    indices, pixels, statuses = everything.with_options(options).get_single_element()
    indices, pixels, statuses = indices[1:, None], pixels[1:], statuses[1:]
    shape = tf.stack([count, *recipe.size, 3])
    assumed = tf.where(_format(_head(files)) == len(_FORMATS), NOT_AN_IMAGE, DAMAGED)
    assumed = tf.where(files == "", EMPTY, assumed)
    return (
        tf.ensure_shape(tf.scatter_nd(indices, pixels, shape), (None, *recipe.size, 3)),
        tf.tensor_scatter_nd_update(assumed, indices, statuses),
    )


def orientation(file):
    """The EXIF orientation of a JPEG file, 1 where it tells none. Scalar int32.

    Args:
        file: scalar string tensor.

    Source: CIPA DC-008 (Exif 3.0), sections 4.5 and 4.6.
    """
    import tensorflow as tf

    length = tf.strings.length(file)

    def is_header(position, _):
        marker = _bytes(file, position, 2)
        return (position + 4 <= length) & (marker[0] == 0xFF) & (marker[1] != 0xDA)  # start of scan

    def next_header(position, _):
        _, marker, high, low = tf.unstack(_bytes(file, position, 4))
        size = high * 256 + low
        is_exif = (marker == 0xE1) & (_text(file, position + 4, 6) == b"Exif\0\0")
        step = tf.where(marker == 0xFF, 1, 2 + size)  # a marker may be padded with 0xFF
        return (
            tf.where(is_exif, length, position + step),
            tf.where(is_exif, _text(file, position + 10, size - 8), b""),
        )

    is_jpeg = _text(file, 0, 2) == b"\xff\xd8"
    start = tf.where(is_jpeg, 2, length)
    _, tiff = tf.while_loop(is_header, next_header, (start, tf.constant(b"")))
    big = _text(tiff, 0, 2) == b"MM"

    def number(values):
        """Along the last axis, in the byte order of the file."""
        values = tf.where(big, values, tf.reverse(values, [-1]))
        powers = [256**k for k in reversed(range(values.shape[-1]))]
        return tf.reduce_sum(values * powers, -1)

    # An offset of 2 GB or more, negative here, is as wrong as any beyond the end.
    directory = number(_bytes(tiff, 4, 4))
    directory = tf.where(directory < 8, tf.strings.length(tiff), directory)
    count = number(_bytes(tiff, directory, 2))
    entries = _text(tiff, directory + 2, 12 * count)
    whole = tf.strings.length(entries) // 12 * 12
    entries = tf.reshape(_numbers(tf.strings.substr(entries, 0, whole)), (-1, 12))
    values = number(entries[:, 8:10])
    values = values[(number(entries[:, :2]) == _ORIENTATION) & (values >= 1) & (values <= 8)]
    return tf.concat([values, [1]], 0)[0]


def prepared(image, recipe):
    """`keras_vit.prepare` in a graph.

    As Pillow does, width first, each direction rounded to whole grey levels. (Pillow 13 starts with
    the height where that shrinks much more, which only "squash" can ask for.)

    Args:
        image: uint8 tensor (H, W, 3).
        recipe: a `Recipe`.

    Returns:
        float32 tensor (h, w, 3) of the recipe's size, 0..255.
    """
    import tensorflow as tf

    size = tf.shape(image)[:2]
    resized = _resized_size(size, recipe)
    spare = resized - recipe.size
    margin = tf.maximum(spare, 0)
    if recipe.crop_offset == "round":
        start = tf.cast(tf.round(margin / 2), tf.int32)  # half to even
    else:
        start = margin // 2
    scale = tf.cast(resized / size, tf.float32)
    taken = tf.minimum(resized, recipe.size)
    x = image[None]
    for height, width in ((False, True), (True, False)):
        x = tf.raw_ops.ScaleAndTranslate(
            images=x,
            size=tf.where([height, width], taken, tf.shape(x)[1:3]),
            scale=tf.where([height, width], scale, 1.0),
            translation=tf.where([height, width], -tf.cast(start, tf.float32), 0.0),
            kernel_type=_KERNELS[recipe.interpolation],
            antialias=recipe.antialias,
        )
        if recipe.antialias:
            x = tf.floor(tf.clip_by_value(x, 0.0, 255.0) + 0.5)
    before = tf.maximum(-spare, 0) // 2
    after = tf.maximum(-spare, 0) - before
    fill = tf.constant(recipe.fill, tf.float32)
    padded = tf.pad(x[0] - fill, tf.concat([tf.stack([before, after], 1), [[0, 0]]], 0)) + fill
    return tf.ensure_shape(padded, (*recipe.size, 3))


def _resized_size(size, recipe):
    """What the picture is resized to before the crop, int32 (2,)."""
    import tensorflow as tf

    target = tf.constant([math.floor(side / recipe.crop_fraction) for side in recipe.size])
    if recipe.resize == "squash":
        return target
    if recipe.resize == "border":
        ratio = tf.reduce_max(size / target)
        return tf.maximum(1, tf.cast(tf.round(tf.cast(size, tf.float64) / ratio), tf.int32))
    scaled = size * tf.reverse(target, [0])  # by cross-multiplication, exact
    height_decides = scaled[0] <= scaled[1]
    return tf.where(
        height_decides, [target[0], scaled[1] // size[0]], [scaled[0] // size[1], target[1]]
    )


def _decoded(file):
    """Pixels of one file, uint8 (H, W, 3); transparent parts over white, of an animation the first picture."""
    import tensorflow as tf

    decoders = (*(decode for _, _, decode in _FORMATS), _decode_nothing)
    return tf.switch_case(_format(_head(file)), [lambda d=d: d(file) for d in decoders])


def _is_too_large(file, max_pixels):
    import tensorflow as tf

    def unknown(file):
        return tf.zeros(2, tf.int64)

    sizes = (*(size for _, size, _ in _FORMATS), unknown)
    size = tf.switch_case(_format(_head(file)), [lambda s=s: s(file) for s in sizes])
    return (tf.reduce_prod(size) > max_pixels) | tf.reduce_any(size > MAX_SIDE)


def _format(head):
    """Index into `_FORMATS` of the format that bytes (..., _HEAD) begin, the next one for none."""
    import tensorflow as tf

    matches = []
    for signature, _, _ in _FORMATS:
        known = [(k, value) for k, value in enumerate(signature) if value != ord("?")]
        indices, values = zip(*known, strict=True)
        matches.append(tf.reduce_all(tf.gather(head, indices, axis=-1) == values, -1))
    matches.append(tf.ones_like(matches[0]))
    return tf.argmax(tf.cast(tf.stack(matches, -1), tf.int32), -1, tf.int32)


def _head(files):
    """The first bytes, (..., _HEAD) int32, zeros beyond the end."""
    import tensorflow as tf

    return tf.cast(tf.io.decode_raw(files, tf.uint8, fixed_length=_HEAD), tf.int32)


def _text(text, position, length):
    """A part of a scalar string; what lies beyond its end is missing."""
    import tensorflow as tf

    return tf.strings.substr(text, tf.minimum(position, tf.strings.length(text)), length)


def _bytes(text, position, length):
    """A part of a scalar string as int32 (length,); zeros beyond its end."""
    import tensorflow as tf

    part = _text(text, position, length)
    return tf.cast(tf.io.decode_raw(part, tf.uint8, fixed_length=length), tf.int32)


def _numbers(text):
    import tensorflow as tf

    return tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int32)


def _little(values):
    """The number that bytes (n,) are, lowest first; scalar int64."""
    import tensorflow as tf

    powers = [256**k for k in range(values.shape[-1])]
    return tf.reduce_sum(tf.cast(values, tf.int64) * powers)


def _jpeg_size(file):
    import tensorflow as tf

    return tf.cast(tf.image.extract_jpeg_shape(file)[:2], tf.int64)


def _png_size(file):
    import tensorflow as tf

    head = tf.reverse(_head(file), [-1])
    end = _HEAD - 16
    return tf.stack([_little(head[end - 8 : end - 4]), _little(head[end - 4 : end])])


def _bmp_size(file):
    import tensorflow as tf

    head = _head(file)
    height, width = _little(head[22:26]), _little(head[18:22])
    height = tf.minimum(height, 2**32 - height)  # negative if the rows go from top to bottom
    return tf.stack([height, width])


def _gif_size(file):
    """The larger of the whole and its first picture, in both directions."""
    import tensorflow as tf

    whole, (start, _) = _head(file), _first_gif_picture(file)
    first = _bytes(file, start, 10)
    return tf.stack(
        [
            tf.maximum(_little(whole[8:10]), _little(first[7:9])),
            tf.maximum(_little(whole[6:8]), _little(first[5:7])),
        ]
    )


def _webp_size(file):
    import tensorflow as tf

    head = _head(file)
    lossy = [_little(head[28:30]) % 2**14, _little(head[26:28]) % 2**14]
    bits = _little(head[21:25])
    lossless = [bits // 2**14 % 2**14 + 1, bits % 2**14 + 1]
    extended = [_little(head[27:30]) + 1, _little(head[24:27]) + 1]
    kind = _text(file, 12, 4)
    return tf.where(kind == b"VP8 ", lossy, tf.where(kind == b"VP8L", lossless, extended))


def _decode_jpeg(file):
    import tensorflow as tf

    return tf.io.decode_jpeg(file, channels=3, dct_method="INTEGER_ACCURATE")


def _decode_png(file):
    import tensorflow as tf

    def grey():  # which TensorFlow gives a wrong opacity below 8 bits, and cuts at 16
        x = tf.cast(tf.io.decode_png(file, channels=1, dtype=tf.uint16), tf.int32)
        return tf.tile(tf.cast((x + 128) // 257, tf.uint8), (1, 1, 3))

    return tf.cond(_head(file)[25] == 0, grey, lambda: _over_white(tf.io.decode_png(file, 4)))


def _decode_webp(file):
    import tensorflow as tf

    extended = _text(file, 12, 4) == b"VP8X"
    animated = extended & (_head(file)[20] // 2 % 2 == 1)
    # TensorFlow 2.21 writes beyond the end of its own memory for an animation.
    with tf.control_dependencies([tf.debugging.assert_equal(animated, False)]):
        # Not by `DecodeWebP`, which would keep older servers, without WebP, from loading the model.
        pixels = tf.io.decode_image(tf.identity(file), expand_animations=False)
    pixels = tf.ensure_shape(pixels, (None, None, None))
    opaque = tf.shape(pixels)[-1] == 3
    return tf.cond(opaque, lambda: tf.identity(pixels), lambda: _over_white(pixels))


def _decode_bmp(file):
    import tensorflow as tf

    depth = _little(_head(file)[28:30])
    check = tf.debugging.assert_greater(depth, tf.constant(8, tf.int64))  # no palettes
    with tf.control_dependencies([check]):
        return tf.io.decode_bmp(file)[..., :3]


def _decode_gif(file):
    import tensorflow as tf

    _, end = _first_gif_picture(file)
    return tf.io.decode_gif(tf.strings.substr(file, 0, end) + b";")[0]


def _decode_nothing(file):
    import tensorflow as tf

    with tf.control_dependencies([tf.debugging.Assert(False, ["no image"])]):
        return tf.zeros((1, 1, 3), tf.uint8)


def _first_gif_picture(file):
    """Where in a GIF file the descriptor of the first picture starts, and where its data ends.

    TensorFlow decodes all pictures of an animation at once, however many.
    """
    import tensorflow as tf

    length = tf.strings.length(file)

    def table(flags):
        """Bytes of a colour table."""
        return tf.where(flags >= 128, 3 * tf.bitwise.left_shift(2, flags % 8), 0)

    def after_blocks(position):
        """The end of a run of data blocks, each led by its length; 0 ends it."""

        def block_length(position):
            return _bytes(file, position, 1)[0]

        (end,) = tf.while_loop(
            lambda p: (block_length(p) > 0) & (p < length),
            lambda p: (p + 1 + block_length(p),),
            (position,),
        )
        return end + 1

    start = 13 + table(_bytes(file, 10, 1)[0])
    (start,) = tf.while_loop(
        lambda p: _text(file, p, 1) == b"!", lambda p: (after_blocks(p + 2),), (start,)
    )
    data = start + 10 + table(_bytes(file, start + 9, 1)[0]) + 1
    return start, after_blocks(data)


def _over_white(pixels):
    """uint8 (H, W, 4) with opacity to (H, W, 3)."""
    import tensorflow as tf

    def blended():
        colours, opacity = tf.cast(pixels[..., :3], tf.uint16), tf.cast(pixels[..., 3:], tf.uint16)
        x = colours * opacity + 255 * (255 - opacity) + 128  # at most 65153
        shift = tf.bitwise.right_shift
        return tf.cast(shift(x + shift(x, 8), 8), tf.uint8)  # divided by 255, rounded

    opaque = tf.reduce_all(pixels[..., 3] == 255)
    return tf.cond(opaque, lambda: pixels[..., :3], blended)


def _upright(pixels, orientation):
    import tensorflow as tf

    turned = tf.cond(
        orientation > 4, lambda: tf.transpose(pixels, (1, 0, 2)), lambda: tf.identity(pixels)
    )
    order = (orientation - 1) % 4
    rows = tf.where(order >= 2, -1, 1)
    columns = tf.where((order == 1) | (order == 2), -1, 1)
    return turned[::rows, ::columns]


# How a file of each format begins ("?" for any byte), its (height, width), its pixels.
_FORMATS = (
    (b"\xff\xd8", _jpeg_size, _decode_jpeg),
    (b"\x89PNG", _png_size, _decode_png),
    (b"RIFF????WEBP", _webp_size, _decode_webp),
    (b"BM", _bmp_size, _decode_bmp),
    (b"GIF8", _gif_size, _decode_gif),
)
