"""The main job from one end to the other, over real sockets."""
